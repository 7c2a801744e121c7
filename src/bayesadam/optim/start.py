"""The share of a posterior's precision that still comes from the initial precision, and warnings about it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bayesadam.engine.rule import PER_WEIGHT, Rule
from bayesadam.engine.store import INIT, Slot, hyper
from bayesadam.sharding import full

DOMINATES = 0.5
"""Share of the initial precision above which the posterior's width counts as not learned."""
ENOUGH = 100
"""Number of steps after which the width should be learned; no warning is issued before."""


def _told(slot: Slot, state: Mapping[str, Any]) -> dict[str, Any]:
    """The rule's hyper-parameters for the full tensor; the prior precision is 0 if there is no prior or tau is 0."""
    views = {name: full(state[name]) for name in PER_WEIGHT if isinstance(state.get(name), Tensor)}
    hp = hyper(slot.group, state, views)
    hp["prior_precision"] = hp.get("prior_precision", 0.0) * (hp["temperature"] > 0)
    return hp


def share_of_start(slot: Slot, state: Mapping[str, Any], variance: Tensor) -> float:
    """Share of the posterior precision that still comes from the initial precision, averaged over a tensor's weights.

    It is ``B (initial_precision - lambda) sigma^2``, where ``B`` is the weight of the start in the running curvature.
    """
    hp = _told(slot, state)
    start = hp["initial_weight"] * (hp["initial_precision"] - hp["prior_precision"])
    return float((start * variance).clamp(0.0, 1.0).mean())


def prior_of(slot: Slot, state: Mapping[str, Any], variance: Tensor) -> float:
    """Prior precision of a tensor; if it differs by weight, the mean weighted by the posterior variances.

    With this mean the sum of ``1 - lambda sigma^2`` is the same as with the precision of each weight.
    """
    precision = _told(slot, state)["prior_precision"]
    if isinstance(precision, Tensor):
        return float((precision * variance).sum() / variance.sum())
    return float(precision)


def warn_of_start(share: float, group: Mapping[str, Any], steps: int, stacklevel: int) -> None:
    """Warn that the initial precision dominates, and name a setting that would forget it."""
    warnings.warn(
        f"{share:.0%} of the posterior's precision is still initial_precision after {steps:,} steps, so its width is "
        f"not learned: {_remedy(group, steps)}; optimizer.report() has the numbers",
        UserWarning,
        stacklevel=stacklevel,
    )


def lacks_batch_size(rule: Rule, group: Mapping[str, Any]) -> bool:
    """Whether curvature is estimated from the squared mean gradient of an unknown number of examples."""
    if "hessian" in group:  # of the squared gradients of single examples
        return False
    return rule.power == 2 and not group.get("bridge", True) and "batch_size" in group and group["batch_size"] is None


def warn_of_batch_size(stacklevel: int) -> None:
    """Warn that without a batch size the width is that of a training on single examples."""
    warnings.warn(
        "batch_size is not known, so the posterior is as wide as if every step had seen one example: give "
        "batch_size, the number of examples in the loss of a step",
        UserWarning,
        stacklevel=stacklevel,
    )


def _remedy(group: Mapping[str, Any], steps: int) -> str:
    """Name a setting with which at most a tenth of the start would remain after as many steps, for any curvature."""
    if not group.get("bridge", True):
        return f"train for more steps, or give a smaller initial_steps than {group['initial_steps']:g}"
    temperature, (first, second) = group["temperature"], group["betas"]
    if temperature == 0:
        return "at temperature=0 the start is never forgotten, so give a smaller initial_precision"
    prior = 1.0 if group["prior_precision"] == INIT else group["prior_precision"]
    start = group["initial_precision"] or max(prior, group["num_data"])
    needed = max(3.0, math.log(max(1.0, 9.0 * (start - prior) / prior)))
    rate = needed / steps
    if rate > 0.5:
        return f"train for more steps, {math.ceil(2 * needed)} at least"
    if rate <= 0.5 * temperature:
        return f"betas=({first:g}, {_below_one(rate / temperature)}) would forget the start in as many steps"
    if rate <= 1.0 - second:
        return f"temperature={rate / (1.0 - second):.2g} would forget the start in as many steps"
    return (
        f"num_data={group['num_data'] / temperature:g} with temperature=1 and betas=({first:g}, {_below_one(rate)}), "
        "the same objective, would forget the start in as many steps"
    )


def _below_one(rate: float) -> str:
    """``1 - rate`` as text, with two significant digits of the rate."""
    rounded = float(f"{rate:.1e}")
    return f"{1.0 - rounded:.{max(0, 1 - math.floor(math.log10(rounded)))}f}".rstrip("0")
