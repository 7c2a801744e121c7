"""Checks of arguments, with one form of message, that raise before anything is changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args, get_origin

import numpy as np
import torch
from torch import Tensor, nn

_COUNTS = ("mc_samples", "probes")


def check(name: str, value: Any, rule: str, holds: Callable[[Any], bool], *, words: bool = False) -> None:
    """Raise ``ValueError`` unless ``holds(value)``; a value of a type that the test cannot handle is refused, too.

    With ``words``, strings are valid values. Otherwise they are refused, since they may be numbers from a file that
    were not converted.
    """
    try:
        good = (words or not isinstance(value, str)) and bool(holds(value))
    except (TypeError, ValueError, RuntimeError):
        good = False
    if not good:
        raise ValueError(f"{name} must be {rule}, got {value!r}")


def truths(values: Iterable[Tensor]) -> list[bool]:
    """The values of 0-d boolean tensors; a device is waited for once, not for each."""
    gathered: list[Tensor] = []
    for value in values:
        gathered.append(value.to(gathered[0].device) if gathered else value)
    read: list[bool] = torch.stack(gathered).tolist() if gathered else []
    return read


def require(rules: Sequence[tuple[Tensor, Callable[[], Exception]]]) -> None:
    """Raise the error of the first rule that does not hold; a device is waited for once.

    Args:
        rules: 0-d boolean tensors, each with the function that makes the error.
    """
    if not rules:
        return
    conditions, errors = zip(*rules, strict=True)
    for holds, error in zip(truths(conditions), errors, strict=True):
        if not holds:
            raise error()


def plain(name: str, value: Any) -> Any:
    """Convert NumPy values, and lists of ``betas``, to the Python types that PyTorch's schedulers need."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if name == "betas" and isinstance(value, list | tuple):
        return tuple(plain("beta", beta) for beta in value)
    if name in _COUNTS and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def check_temperature(value: Any, *, zero: bool = True) -> None:
    """Raise ``ValueError`` unless a value is a temperature: the factor of the KL divergence, at most 1.

    Without ``zero``, a temperature of 0 is refused, too, where the posterior has no limit.
    """
    rule = "in [0, 1]" if zero else "in (0, 1]"
    check("temperature", value, rule, lambda v: (0 <= v if zero else 0 < v) and v <= 1)


def check_positive(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless a value is a positive, finite number."""
    check(name, value, "a positive, finite number", is_positive)


def check_count(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless a value is a whole number of at least 1."""
    check(name, value, "a whole number of at least 1", is_whole)


def check_tensor(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless a value is a tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}")


def check_model(model: Any) -> None:
    """Raise ``ValueError`` unless a value is a network; it may be a posterior, if arguments were swapped."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def made_by(make_model: Callable[[], nn.Module]) -> nn.Module:
    """Make a network; raise ``ValueError`` unless ``make_model`` is a function, not a network itself, and makes one."""
    rule = "make_model must be a function that returns a network"
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise ValueError(f"{rule}, got {type(make_model).__name__}")
    model = make_model()
    if not isinstance(model, nn.Module):
        raise ValueError(f"{rule}, got one for {type(model).__name__}")
    return model


def check_new(models: Sequence[nn.Module]) -> None:
    """Raise ``ValueError`` unless networks of one ``make_model`` have trainable parameters of their own."""
    trained = [id(p) for model in models for p in model.parameters() if p.requires_grad]
    if len(set(trained)) < len(trained):
        raise ValueError("make_model must return new parameters at each call, got those of another network")


def check_pair(data: Any) -> None:
    """Raise ``ValueError`` unless data are a pair of tensors with as many inputs as targets, and not empty."""
    if not isinstance(data, tuple) or len(data) != 2 or not all(isinstance(part, Tensor) for part in data):
        raise ValueError(f"data must be a pair of tensors (x, y), got {type(data).__name__}")
    if len(data[0]) != len(data[1]) or not len(data[0]):
        raise ValueError(f"data must be as many inputs as targets, got {len(data[0])} and {len(data[1])}")


def check_nonfinite(value: Any) -> None:
    """Raise ``ValueError`` unless a value says what to do with numbers that are not finite."""
    check("nonfinite", value, "'raise' or 'skip'", lambda v: v in ("raise", "skip"), words=True)


def is_positive(value: Any) -> bool:
    """Whether a value is a positive, finite number."""
    return bool(0 < value < math.inf)


def is_whole(value: Any, least: int = 1) -> bool:
    """Whether a value is an integer of Python or NumPy, and at least ``least``."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def is_of(value: Any, hint: Any) -> bool:
    """Whether a value, which may come from a file, is of an annotated type: a simple one, a tuple or a union."""
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(is_of(item, get_args(hint)[0]) for item in value)
    if get_args(hint):
        return any(is_of(value, part) for part in get_args(hint))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)
