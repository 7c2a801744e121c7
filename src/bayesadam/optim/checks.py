"""Checks of hyper-parameters: one message form, raised before anything is changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

_COUNTS = ("mc_samples", "probes")


def check(name: str, value: Any, rule: str, holds: Callable[[Any], bool]) -> None:
    """Raise ``ValueError`` unless ``holds(value)``; a value of a type that the test cannot take is refused too."""
    try:
        good = not isinstance(value, str) and bool(holds(value))
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


def check_common(group: dict[str, Any]) -> None:
    """The hyper-parameters that every perturbed optimiser has."""
    check("lr", group["lr"], "a number or a 1-element tensor, finite and at least 0", _is_learning_rate)
    check("betas", group["betas"], "a pair of numbers in [0, 1)", _is_betas)
    check("num_data", group["num_data"], "a positive, finite number", _is_positive)
    check("temperature", group["temperature"], "in [0, 1]", lambda v: 0 <= v <= 1)
    check("mc_samples", group["mc_samples"], "a whole number of at least 1", is_whole)
    check("seed", group["seed"], "an integer in [0, 2**64)", lambda v: isinstance(v, int) and 0 <= v < 2**64)
    for name in ("antithetic", "perturb", "maximize", "compile"):
        check(name, group[name], "True or False", lambda v: isinstance(v, bool))
    if group["antithetic"]:
        check("mc_samples", group["mc_samples"], "even when antithetic=True", lambda v: v % 2 == 0)
    if group["nonfinite"] not in ("raise", "skip"):
        raise ValueError(f"nonfinite must be 'raise' or 'skip', got {group['nonfinite']!r}")
    if group["initial_precision"] is not None:
        check("initial_precision", group["initial_precision"], "a positive, finite number", _is_positive)


def check_prior(group: dict[str, Any]) -> None:
    """The prior's precision, and that the posterior does not start wider than the prior."""
    prior, start = group["prior_precision"], group["initial_precision"]
    check("prior_precision", prior, "a positive, finite number", _is_positive)
    if start is not None:
        check("initial_precision", start, f"at least prior_precision={prior!r}", lambda v: v >= prior)


def _is_positive(value: Any) -> bool:
    return bool(0 < value < math.inf)


def _is_learning_rate(value: Any) -> bool:
    if isinstance(value, Tensor) and value.numel() != 1:
        return False
    return 0 <= float(value) < math.inf


def _is_betas(value: Any) -> bool:
    first, second = value
    return isinstance(value, tuple) and 0 <= first < 1 and 0 <= second < 1
