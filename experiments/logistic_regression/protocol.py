"""The settings of the methods, as JSON: what determines a unit's result."""

from __future__ import annotations

from typing import Any


def settings(
    method: str,
    batch_size: int,
    iterations: int,
    lr: float,
    rate: float,
    *,
    momentum: float = 0.9,
    decay: float | None = None,
) -> dict[str, Any]:
    """How a method is run, as JSON.

    Args:
        method: ``"vadam"``, ``"vadam-matlab"``, ``"vogn"``.
        batch_size: Drawn with replacement; at least the number of data points: all of them, in every step.
        iterations: Steps.
        lr: First learning rate.
        rate: First ``1 - b2``.
        momentum: ``b1``.
        decay: Both rates are divided by ``1 + t^decay`` (Khan et al. 2018, eq. 104); ``None``: constant.
    """
    found = {"method": method, "batch_size": batch_size, "iterations": iterations, "lr": lr, "rate": rate}
    return {**found, "momentum": momentum, "decay": decay}


VON: dict[str, Any] = {
    "method": "von",
    "iterations": 20_000,
    "lr": 0.05,
    "rate": 0.05,
    "half_life": 1000,
    "averaged": 0.2,
}
"""VON with exact Hessians on full batches; both rates are divided by ``1 + t / half_life``.

The last share ``averaged`` of the steps is averaged.
"""
