"""Overfitting, seen from gradients: a training that memorises its rows becomes slower and noisier.

Let ``d`` be the movement of the mean since the beginning of an epoch, and ``g`` the gradient of a later minibatch. To
first order ``g . d`` is by how many nats per data point the movement has raised the loss of these rows. In the second
half of the epoch the rows have not been visited since its beginning, and the mean of ``g . d`` is ``U``. In the first
half of the next epoch, every row has been visited once: the mean is ``S``. Steps that wander about in a valley raise
both alike, and learning lowers both. Memorising raises ``U`` and lowers ``S``, so that ``min(U, U - S)`` is what an
epoch has memorised, where it has not made other rows better, too. The rows of ``U`` were visited in earlier epochs, so
that the sum over epochs is of the order of the gap between losses of new rows and of the training's, and not equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesadam.modules.sharding import full
from bayesadam.optim.schedules import annealed, annealed_after

LEAST_STEPS = 4
"""Least number of steps of an epoch: with fewer there is nothing to compare."""
MEASURED = 32
"""Steps of an epoch in which the overlap of gradient and movement is measured, about."""
MEMORY = 0.5
"""Weight of the epochs before in the average of the measurements."""
UNNOTICED = 0.03
"""What an epoch at the full rate may always memorise, in nats per data point."""
POWER = 0.5
"""Power of what an epoch may memorise over what it has, by which the rate changes."""
CHANGE = (0.4, 1.5)
"""Least and largest factor of the rate from one epoch to the next."""
SLOWEST = 0.1
"""Least factor of the rate."""

MEANS = BEFORE, START = "last_epoch_start", "epoch_start"
"""Entries of a parameter's state: its mean at the beginning of the last epoch, and of this one."""


def start() -> dict[str, Any]:
    """The measurements of a training that has not begun.

    ``unseen`` and ``seen`` are the numbers, sums and sums of squares of the overlaps of the latest epoch. The sums over
    epochs with falling weights are ``unseen_mean``, of ``U``, ``gap``, of ``U - S``, ``variance``, of its squared
    error, and ``weight``, of 1. ``memorised`` is the sum of ``min(U, U - S)`` so far, in nats per data point.
    """
    sums = {"unseen": [0, 0.0, 0.0], "seen": [0, 0.0, 0.0]}
    return {**sums, **dict.fromkeys(("unseen_mean", "gap", "variance", "weight", "memorised"), 0.0)}


def steps_of_epoch(group: Mapping[str, Any]) -> int:
    """Number of steps of an epoch: minibatches rounded up, or down where the planned steps then are whole epochs."""
    exact = group["num_data"] / group["batch_size"]
    up, down = math.ceil(exact), math.floor(exact)
    return down if down and group["total_steps"] % up and not group["total_steps"] % down else up


def watch(groups: Sequence[dict[str, Any]], state: Mapping[Tensor, dict[str, Any]]) -> None:
    """Measure before a step, and after every epoch decide ``slowdown``, the factor of the rate, for all groups.

    Args:
        groups: The optimiser's groups; their parameters have the gradients of the step.
        state: The optimiser's state, with the means.
    """
    first = groups[0]
    steps, number = steps_of_epoch(first), first["noise_step"]
    if steps < LEAST_STEPS or first["total_steps"] < 2 * steps:
        return
    within, measured = number % steps, first["overlaps"]
    if within == 0:
        for _, entries in _trained(groups, state):
            entries[BEFORE].copy_(entries[START])
            entries[START].copy_(entries["mean"])
    is_second_half = 2 * within >= steps
    if is_second_half and measured["seen"][0]:
        slowdown = _decide(measured, first, number / first["total_steps"], first["total_steps"] / steps)
        for group in groups:
            group["slowdown"] = slowdown
    if within % max(1, steps // MEASURED) == 0 and (is_second_half or number >= steps):
        name, sums = (START, "unseen") if is_second_half else (BEFORE, "seen")
        trained = _trained(groups, state)
        if trained:
            products = torch._foreach_sub([each["mean"] for _, each in trained], [each[name] for _, each in trained])
            torch._foreach_mul_(products, [gradient for gradient, _ in trained])
            overlap = float(torch.stack([full(product.sum()) for product in products]).double().sum())
            overlap = -overlap if first["maximize"] else overlap
            count, total, squares = measured[sums]
            measured[sums] = [count + 1, total + overlap, squares + overlap**2]


def _trained(
    groups: Sequence[Mapping[str, Any]], state: Mapping[Tensor, dict[str, Any]]
) -> list[tuple[Tensor, dict[str, Any]]]:
    """The gradients of the step with the states of their parameters; a frozen parameter may have an earlier one."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    return [(p.grad, state[p]) for p in parameters if p.grad is not None and p.requires_grad]


def _decide(measured: dict[str, Any], group: Mapping[str, Any], done: float, epochs: float) -> float:
    """The factor of the rate from now on; the sums of ``measured`` start anew.

    The whole training may memorise ``max_memorised`` nats. What is left of them is divided among the epochs to come,
    in proportion to the cosine of the rate.

    Args:
        measured: See :func:`start`.
        group: The first group.
        done: Share of the steps that have been made.
        epochs: Epochs of the training.
    """
    unseen, seen = measured["unseen"], measured["seen"]
    measured["unseen"], measured["seen"] = [0, 0.0, 0.0], [0, 0.0, 0.0]
    gap = _mean(unseen) - _mean(seen)
    measured["memorised"] += min(gap, max(0.0, _mean(unseen)))
    new = 1.0 - MEMORY
    values = {"unseen_mean": _mean(unseen), "gap": gap, "weight": 1.0}
    for name, value in values.items():
        measured[name] = MEMORY * measured[name] + new * value
    measured["variance"] = MEMORY**2 * measured["variance"] + new**2 * (_squared_error(unseen) + _squared_error(seen))
    certain = measured["gap"] - math.sqrt(measured["variance"])
    excess = min(certain, measured["unseen_mean"]) / measured["weight"]
    left = min(group["max_memorised"], max(0.0, group["max_memorised"] - measured["memorised"]))
    allowed = max(UNNOTICED, left / (0.5 + epochs * annealed_after(done))) * annealed(done)
    least, largest = CHANGE
    change = largest if excess <= 0 else min(largest, max(least, (allowed / excess) ** POWER))
    return min(1.0, max(SLOWEST, group["slowdown"] * change))


def _mean(sums: Sequence[float]) -> float:
    count, total, _ = sums
    return total / max(1, count)


def _squared_error(sums: Sequence[float]) -> float:
    """The squared standard error of the mean, 0 of a single value."""
    count, _, squares = sums
    return max(0.0, squares / max(1, count) - _mean(sums) ** 2) / max(1, count - 1)
