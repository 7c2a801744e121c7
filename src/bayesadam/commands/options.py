"""Options of the command line and the parameters of the library that they stand for."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayesadam.runs import Settings

_PARAMETER = re.compile(r"(?<!['\"`])`([a-z_]+)`(?!`)")
"""Pattern of a parameter in a message. The user's names and values are inside quotation marks as well."""


def option(name: str) -> str:
    """Return the option for a parameter: ``held_out`` is ``--held-out``."""
    return "--" + name.replace("_", "-")


def with_options(message: str) -> str:
    """Replace the parameters in a message of the library, which are in backquotes, by options."""
    return _PARAMETER.sub(lambda found: option(found[1]), message)


def parse_hidden(text: str) -> tuple[int, ...]:
    """Return the numbers of units of hidden layers from a text such as "100,50".

    Raises:
        RunError: The text has another form.
    """
    from bayesadam.runs import RunError

    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:  # int() raises it for numbers with thousands of digits, too
        raise RunError(f"`hidden` must be positive whole numbers, such as 50 or 100,50, got {text!r}") from None


def fit_command(settings: Settings, out: Path) -> str:
    """Return the command line that fits with these settings."""
    words = ["bayesadam", "fit", settings.data]
    for field in fields(settings)[1:]:
        value = getattr(settings, field.name)
        if value == field.default and field.name != "target":
            continue
        if field.name == "hidden":
            words += [option("hidden"), ",".join(map(str, value))]
        elif isinstance(value, tuple):
            words += [word for text in value for word in (option(field.name), text)]
        else:
            words += [option(field.name)] if value is True else [option(field.name), str(value)]
    return shlex.join([*words, option("out"), str(out)])
