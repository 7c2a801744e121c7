"""What mkdocstrings reads of the library's docstrings: Markdown, where they have Sphinx's roles, blocks and tables."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

import bayesadam

_ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([\w.]+)`")
_TABLE = re.compile(r"(?:^=+ =+\n(?:.+\n)+)", re.MULTILINE)


class Markdown(griffe.Extension):
    """Rewrites every docstring as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Roles become links (or code, where there is no page), ``::`` a colon, tables a block."""
    text = _ROLE.sub(_link, text)
    text = re.sub(r"(?<=[.]) ::$", "", text, flags=re.MULTILINE)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return _TABLE.sub(_block, text + "\n").rstrip()


def _link(match: re.Match[str]) -> str:
    name = match[1]
    parts = name.removeprefix("bayesadam.").split(".")
    target: Any = bayesadam if hasattr(bayesadam, parts[0]) else bayesadam.optim
    for part in parts:
        target = getattr(target, part, None)
    if not inspect.isclass(target) and not inspect.isfunction(target):
        return f"`{name}`"
    return f"[`{name}`][{target.__module__}.{target.__qualname__}]"


def _block(match: re.Match[str]) -> str:
    rows = [line for line in match[0].splitlines() if not line.startswith("=")]
    return "".join(f"    {row}\n" for row in rows)
