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
"""A parameter in a message; what is also in quotation marks is a name or a value of the user's."""


def option(name: str) -> str:
    """The option for a parameter: ``held_out`` is ``--held-out``."""
    return "--" + name.replace("_", "-")


def with_options(message: str) -> str:
    """A message of the library, in which parameters are in backquotes, with the options in their place."""
    return _PARAMETER.sub(lambda found: option(found[1]), message)


def parse_hidden(text: str) -> tuple[int, ...]:
    """Units of hidden layers from "100,50".

    Raises:
        RunError: It is something else.
    """
    from bayesadam.runs import RunError

    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:  # of numbers with thousands of digits, too
        raise RunError(f"`hidden` must be positive whole numbers, such as 50 or 100,50, got {text!r}") from None


def fit_command(settings: Settings, out: Path) -> str:
    """The command line that fits with these settings."""
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
