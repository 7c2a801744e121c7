"""Constructor signatures that name every argument, including those that are passed on as ``**options``."""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import Any

from bayesadam.engine.rule import options_of
from bayesadam.optim.recipes import recipe_of


def show_signature(cls: Any) -> None:
    """Let ``help`` and ``inspect.signature`` show all arguments of an optimiser's constructor.

    These are the arguments of the class itself, those of its bases that replace ``**options``, and the options of the
    rule. Default values are those of the default recipe.
    """
    shown: dict[str, Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base) or not hasattr(base, "recipes"):
            continue
        own = inspect.signature(vars(base)["__init__"]).parameters.values()
        passes_on = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in own)
        for parameter in list(own)[1:]:
            if parameter.kind is not Parameter.VAR_KEYWORD:
                shown.setdefault(parameter.name, parameter)
        if not passes_on:
            break
    for option in options_of(cls.rule) if hasattr(cls, "rule") else ():
        shown.setdefault(option.name, Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default))
    settings = recipe_of(cls.recipes, None)
    for name, parameter in shown.items():
        if name in settings and parameter.default is not Parameter.empty and _is_of_recipe(parameter):
            shown[name] = parameter.replace(default=settings[name])
    hidden = () if cls.has_prior else ("prior_precision", "prior", "temperature")
    cls.__signature__ = inspect.Signature([p for name, p in shown.items() if name not in hidden])


def _is_of_recipe(parameter: Parameter) -> bool:
    """Whether the default value comes from the recipe: the argument is an option, or its default is None."""
    return parameter.default is None or parameter.annotation is Parameter.empty
