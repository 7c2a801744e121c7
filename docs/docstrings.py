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
    """Roles become links (or code, where there is no page), ``::`` a colon, tables those of Markdown."""
    text = _ROLE.sub(_link, text)
    text = re.sub(r"(?<=[.]) ::$", "", text, flags=re.MULTILINE)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return _TABLE.sub(_table, text + "\n").rstrip()


def _link(match: re.Match[str]) -> str:
    name = match[1]
    parts = name.removeprefix("bayesadam.").split(".")
    target: Any = bayesadam if hasattr(bayesadam, parts[0]) else bayesadam.optim
    for part in parts:
        target = getattr(target, part, None)
    if not inspect.isclass(target) and not inspect.isfunction(target):
        return f"`{name}`"
    return f"[`{name}`][{target.__module__}.{target.__qualname__}]"


def _table(match: re.Match[str]) -> str:
    border, *lines = match[0].splitlines()
    second = border.index(" ") + 1  # where the second column begins
    rows = [f"| {line[:second].strip()} | {line[second:].strip()} |\n" for line in lines if not line.startswith("=")]
    head = rows.pop(0) if match[0].count(border) == 3 else "| | |\n"
    return f"{head}|---|---|\n{''.join(rows)}"
