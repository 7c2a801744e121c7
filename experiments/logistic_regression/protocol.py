"""The settings of the methods as JSON, which determine the result of a unit."""

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
    """Return the settings of a method, as JSON.

    Args:
        method: ``"vadam"``, ``"vadam-matlab"``, ``"vogn"``.
        batch_size: Number of points per minibatch, which are drawn with replacement. If it is at least the number of
            data points, every step uses all of them.
        iterations: Number of steps.
        lr: Initial learning rate.
        rate: Initial value of ``1 - b2``.
        momentum: Momentum ``b1``.
        decay: Exponent with which both rates are divided by ``1 + t^decay`` (Khan et al. 2018, eq. 104); they are
            constant for ``None``.
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
"""Settings of VON with exact Hessians on full batches. Both rates are divided by ``1 + t / half_life``, and the results
are averaged over the last share ``averaged`` of the steps.
"""
