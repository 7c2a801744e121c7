"""Formulas shared by the rules with a running Hessian ``s``, kept in ``state["hessian"]``; the precision is
``N (s + d)``.

``d = lt`` is the contribution of the prior; it is 0 in variational optimisation (``tau = 0``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesadam.checks import is_whole
from bayesadam.core.rule import Hyper, Number, Option, Rule, State, active_prior

HESSIANS = ("reparameterized", "exact", "hutchinson")
CORRECTIONS = ("elementwise", "backtracking", None)
HESSIAN_OPTIONS = (
    Option("hessian", "reparameterized", f"one of {HESSIANS}", lambda v: v in HESSIANS, static=True),
    Option("correction", None, f"one of {CORRECTIONS}", lambda v: v in CORRECTIONS, static=True),
    Option("probes", 1, "a whole number of at least 1", is_whole),
)
CLIP_RADIUS = Option("clip_radius", math.inf, "positive", lambda v: v > 0)
"""Largest absolute value of a preconditioned step of a weight, before the learning rate."""
LARGEST = 1e-8
"""Upper bound of ``s``, as a share of the largest number of its dtype. It keeps the precision finite after a gradient
that is huge but finite.
"""


class HessianRule(Rule):
    """Base of the rules with a running Hessian.

    Attributes:
        running: Name of its tensor.
    """

    running: ClassVar[str] = "hessian"

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """Zeros, and the Hessian ``s0 = (initial_precision - lambda) / N`` at every weight."""
        start = (hp.initial_precision - active_prior(hp)) / hp.num_data
        return {**super().init(mean, hp), self.running: torch.zeros_like(mean) + start}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``N (s + d)``."""
        return hp.num_data * state[self.running] + active_prior(hp)

    def rate(self, hp: Hyper) -> Number:
        """Return the fraction of the distance to its target by which one step moves the precision."""
        return 1.0 - hp.beta2

    def slowed(self, group: Mapping[str, Any], rate: float) -> dict[str, Any]:
        """The entries of a group, with a rate of at most this one."""
        return {**group, "betas": (group["betas"][0], max(group["betas"][1], 1.0 - rate))}

    def largest_rate(self, state: State, curvature: Tensor, hp: Hyper) -> Tensor:
        """The largest ``r`` for which ``s - r (tau s - h) + d`` is not negative at any weight, as a 0-d tensor.

        It is the minimum of ``(s + d) / (tau s - h)`` over the weights with ``h < tau s`` (Khan et al. 2018, eq. 63,
        for this update), infinite if there are none, and NaN if any ``h`` is.
        """
        shifted = self.precision(state, hp) / hp.num_data
        hessian = shifted - active_prior(hp) / hp.num_data
        error = hp.temperature * hessian - curvature
        return torch.where(error <= 0, torch.inf, shifted / error).min()


class PriceRule(HessianRule):
    """Base of those that estimate the Hessian from the noise."""

    power = 1
    needs_noise = True

    def curvature(self, grad: Tensor, deviation: Tensor | None, state: State, hp: Hyper) -> Tensor | None:
        """``g (theta - mu) / sigma^2``, with the Hessian diagonal of the mean loss as expectation (Price's theorem)."""
        return None if deviation is None else grad * deviation * self.precision(state, hp)


def followed(hessian: Tensor, curvature: Tensor, hp: Hyper, *, corrected: bool) -> Tensor:
    """``s - r e``, with ``e = tau s - h`` and ``r = 1 - b2``.

    With ``corrected``, the term ``0.5 r^2 e^2 / (s + d)`` is added, which keeps ``s + d`` positive for every ``h`` (Lin
    et al. 2020; Shen et al. 2024, Algorithm 1, line 5); the result is bounded by ``LARGEST``.
    """
    rate = 1.0 - hp.beta2
    error = hp.temperature * hessian - curvature
    moved = hessian - rate * error
    if not corrected:
        return moved
    shifted = hessian + active_prior(hp) / hp.num_data
    # The square of a huge error would not be finite.
    return (moved + (0.5 * rate * rate) * (error / shifted * error)).clamp(max=LARGEST * torch.finfo(hessian.dtype).max)


def damped(hessian: Tensor, hp: Hyper) -> Tensor:
    """``s + lt``, the denominator of a Newton step; the prior contributes to it even at ``tau = 0``."""
    return hessian + hp.prior_precision / hp.num_data
