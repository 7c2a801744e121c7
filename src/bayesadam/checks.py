"""Checks of arguments: one message form, raised before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_COUNTS = ("mc_samples", "probes")


def check(name: str, value: Any, rule: str, holds: Callable[[Any], bool], *, words: bool = False) -> None:
    """Raise ``ValueError`` unless ``holds(value)``; a value of a type that the test cannot take is refused too.

    ``words``: strings are values; else they are refused, as a number that was read from a file and never converted.
    """
    try:
        good = (words or not isinstance(value, str)) and bool(holds(value))
    except (TypeError, ValueError, RuntimeError):
        good = False
    if not good:
        raise ValueError(f"{name} must be {rule}, got {value!r}")


def plain(name: str, value: Any) -> Any:
    """A hyper-parameter without numpy's types and as schedulers want it, so that a configuration file's values do."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if name == "betas" and isinstance(value, list | tuple):
        return tuple(plain("beta", beta) for beta in value)
    if name in _COUNTS and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def is_whole(value: Any, least: int = 1) -> bool:
    """Whether a value is a whole number, of Python's or numpy's."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)
