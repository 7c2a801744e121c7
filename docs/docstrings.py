"""What mkdocstrings reads of the library's docstrings: Markdown, where they have Sphinx's roles, blocks and tables."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

import bayesadam

_ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([\w.]+)`")
_REST = re.compile(r"^ *\*\*options: Further arguments of .*$", re.MULTILINE)
_TABLE = re.compile(r"(?:^=+ =+\n(?:.+\n)+)", re.MULTILINE)


class Markdown(griffe.Extension):
    """Rewrites every docstring as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
        if isinstance(obj, griffe.Class) and obj.module.path.startswith("bayesadam.optim."):
            show_arguments(obj)


def show_arguments(cls: griffe.Class) -> None:
    """Show the arguments of an optimiser's constructor as at run time, with those in ``**options``."""
    kind = getattr(importlib.import_module(cls.module.path), cls.name)
    init = cls.members.get("__init__")
    if isinstance(init, griffe.Function) and "__signature__" in vars(kind) and cls.name != "PerturbedOptimizer":
        shown = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        for name, parameter in inspect.signature(kind).parameters.items():
            default = None if parameter.default is parameter.empty else repr(parameter.default)
            annotation = None if parameter.annotation is parameter.empty else str(parameter.annotation)
            place = griffe.ParameterKind[parameter.kind.name.lower()]
            shown.append(griffe.Parameter(name, kind=place, annotation=annotation, default=default))
        init.parameters = griffe.Parameters(*shown)
        if cls.docstring is not None:
            cls.docstring.value = _REST.sub("", cls.docstring.value)


def as_markdown(text: str) -> str:
    """Roles become links (or code, where there is no page), ``::`` a colon, tables a block."""
    text = _ROLE.sub(_link, text)
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
