"""Finding this library's optimisers inside the wrappers of trainers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bayesadam.optim.base import PerturbedOptimizer


def perturbed(optimizers: Iterable[Any]) -> list[PerturbedOptimizer]:
    """The perturbed optimisers among those given, also inside wrappers that keep an optimiser as ``optimizer``."""
    found = []
    for optimizer in optimizers:
        while not isinstance(optimizer, PerturbedOptimizer) and getattr(optimizer, "optimizer", None) is not None:
            optimizer = optimizer.optimizer
        if isinstance(optimizer, PerturbedOptimizer):
            found.append(optimizer)
    return found


def none_found() -> ValueError:
    """Make the error of a callback in a training without such an optimiser."""
    return ValueError("the trainer must have a perturbed optimiser of bayesadam (BayesAdam, Vadam, ...), got none")
