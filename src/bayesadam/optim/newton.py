"""Functions shared by the rules with a running Hessian ``s``, kept in ``state["hessian"]``; the precision is
``N (s + d)``.

``d = lt`` is the contribution of the prior; it is 0 in variational optimisation (``tau = 0``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesadam.checks import is_whole
from bayesadam.engine.rule import Hyper, Option, State, active_prior_precision, add_scaled_, curvature_rate, factor

HESSIANS = ("reparameterized", "exact", "hutchinson")
CORRECTIONS = ("elementwise", "backtracking", None)
HESSIAN_OPTIONS = (
    Option("hessian", "reparameterized", f"one of {HESSIANS}", lambda v: v in HESSIANS, static=True),
    Option("correction", "elementwise", f"one of {CORRECTIONS}", lambda v: v in CORRECTIONS, static=True),
    Option("probes", 1, "a whole number of at least 1", is_whole),
    Option("covariance", "diagonal", "one of ('diagonal', 'full')", lambda v: v in ("diagonal", "full"), static=True),
)
CLIP_RADIUS = Option("clip_radius", math.inf, "positive", lambda v: v > 0)
"""Largest absolute value of a preconditioned step of a weight, before the learning rate."""


LARGEST = 1e-8
"""Upper bound of ``s`` as a share of the largest number of its dtype, so that after a gradient that is huge but finite
the precision is finite.
"""


def initial_hessian(mean: Tensor, hp: Hyper) -> Tensor:
    """``s0 = (initial_precision - lambda) / N`` at every weight."""
    start = (hp["initial_precision"] - active_prior_precision(hp)) / hp["num_data"]
    return torch.zeros_like(mean).add_(factor(start, mean))


def posterior_precision(hessian: Tensor, hp: Hyper) -> Tensor:
    """``N (s + d)``, a new tensor."""
    scaled = torch.mul(hessian, factor(hp["num_data"], hessian))
    return scaled.add_(factor(active_prior_precision(hp), hessian))


def reparameterized_hessian(grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> Tensor | None:
    """``g eps / sigma``, whose expectation is the Hessian diagonal of the mean loss by Price's theorem.

    It is ``None`` without noise.
    """
    if eps is None:
        return None
    return torch.mul(grad, eps).mul_(posterior_precision(state["hessian"], hp).sqrt_())


def follow_curvature_(hessian: Tensor, curvature: Tensor, hp: Hyper, *, corrected: bool) -> None:
    """``s <- s - r e`` in place, with ``e = tau s - h`` and ``r`` of :func:`curvature_rate`.

    With ``corrected``, the term ``0.5 r^2 e^2 / (s + d)`` is added, which keeps ``s + d`` positive for every ``h`` (Lin
    et al. 2020; Shen et al. 2024, Algorithm 1, line 5): it is then ``((s + d - r e)^2 + (s + d)^2) / (2 (s + d))``, and
    bounded by ``LARGEST``. ``curvature`` is overwritten.
    """
    rate = curvature_rate(hp, hp["step"])
    error = curvature.neg_()
    add_scaled_(error, hessian, hp["temperature"])
    if not corrected:
        add_scaled_(hessian, error, -rate)
        return
    shifted = hessian + factor(active_prior_precision(hp) / hp["num_data"], hessian)
    add_scaled_(hessian, error, -rate)
    # The square of a huge error would not be finite.
    add_scaled_(hessian, torch.div(error, shifted, out=shifted).mul_(error), 0.5 * rate * rate)
    hessian.clamp_(max=LARGEST * torch.finfo(hessian.dtype).max)


def damped(hessian: Tensor, hp: Hyper) -> Tensor:
    """``s + lt``, the denominator of a Newton step; the prior contributes to it even at ``tau = 0``."""
    return hessian + factor(hp["prior_precision"] / hp["num_data"], hessian)


def largest_rate(hessian: Tensor, curvature: Tensor, hp: Hyper) -> Tensor:
    """The largest ``r`` for which ``s - r (tau s - h) + d`` is not negative at any weight, as a 0-d tensor.

    It is the minimum of ``(s + d) / (tau s - h)`` over the weights with ``h < tau s`` (Khan et al. 2018, eq. 63, for
    this update), infinite if there are none, and NaN if any ``h`` is.
    """
    error = hessian * factor(hp["temperature"], hessian) - curvature
    shifted = hessian + factor(active_prior_precision(hp) / hp["num_data"], hessian)
    return torch.where(error <= 0, torch.inf, shifted / error).min()
