"""Finding this library's optimisers inside the wrappers of trainers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.bayesadam import BayesAdam


def perturbed(optimizers: Iterable[Any]) -> list[PerturbedOptimizer]:
    """The perturbed optimisers among those given, also inside wrappers that keep an optimiser as ``optimizer``."""
    found = []
    for optimizer in optimizers:
        while not isinstance(optimizer, PerturbedOptimizer) and getattr(optimizer, "optimizer", None) is not None:
            optimizer = optimizer.optimizer
        if isinstance(optimizer, PerturbedOptimizer):
            found.append(optimizer)
    return found


def plan(optimizers: Iterable[PerturbedOptimizer], total_steps: float) -> None:
    """Tell optimisers that were given no number of steps how many the trainer plans, if it knows it."""
    for optimizer in optimizers:
        if isinstance(optimizer, BayesAdam) and 0 < total_steps < math.inf:
            optimizer.plan(total_steps)


def labels_of(batch: Any) -> Tensor | None:
    """The labels of a batch: its entry ``"labels"``, or the last part of a tuple ``(inputs, labels)``."""
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
    else:
        labels = batch[-1] if isinstance(batch, list | tuple) and len(batch) > 1 else None
    return labels if isinstance(labels, Tensor) else None


def warn_of_rows(optimizers: Iterable[PerturbedOptimizer], labels: Tensor | None, batches: float) -> None:
    """Warn if ``num_data`` counts rows of labels that are classes of many elements each, such as tokens or pixels.

    Args:
        optimizers: The optimisers.
        labels: Labels of a batch.
        batches: Number of batches of an epoch; infinite if it is not known.
    """
    if labels is None or labels.ndim < 2 or labels.is_floating_point() or labels.numel() == len(labels):
        return
    for optimizer in optimizers:
        num_data = optimizer.param_groups[0]["num_data"]
        if num_data <= batches * len(labels) and math.isfinite(batches):
            warnings.warn(
                "num_data must count what the loss is averaged over (with a class for every element, such as a token, "
                f"elements; batch_size too), got {num_data:g} for about {batches * len(labels):g} rows with "
                f"{labels.numel() // len(labels)} labels each: the posterior would be far too wide",
                UserWarning,
                stacklevel=3,
            )


def none_found() -> ValueError:
    """Make the error of a callback in a training without such an optimiser."""
    return ValueError("the trainer must have a perturbed optimiser of bayesadam (BayesAdam, Vadam, ...), got none")
