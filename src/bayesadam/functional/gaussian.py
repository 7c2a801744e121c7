"""Element-wise formulae for independent Gaussians, a variance of zero included.

A variance of exactly zero is a point mass: a pruned weight, or one that is not random. Its log density is taken with
respect to the counting measure (0 at its mean, minus infinity elsewhere), and it has no entropy and no divergence of
its own. Everything is computed in float64, since the results are summed over millions of weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_prob(value: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """``log N(value | mean, variance)``, element-wise; shapes broadcast."""
    value, mean, variance = value.double(), mean.double(), variance.double()
    point = variance == 0
    safe = torch.where(point, 1.0, variance)
    density = -0.5 * ((value - mean).square() / safe + safe.log() + math.log(2.0 * math.pi))
    mass = torch.where(value == mean, 0.0, -math.inf)
    return torch.where(point, mass, density)


def entropy(variance: Tensor) -> Tensor:
    """Differential entropy, element-wise: ``0.5 log(2 pi e variance)``; 0 for a point mass."""
    variance = variance.double()
    point = variance == 0
    return torch.where(point, 0.0, 0.5 * (torch.where(point, 1.0, variance).log() + math.log(2.0 * math.pi) + 1.0))


def kl_divergence(mean: Tensor, variance: Tensor, prior_mean: Tensor, prior_variance: Tensor) -> Tensor:
    """``KL(N(mean, variance) || N(prior_mean, prior_variance))``, element-wise (methods section 4).

    A point mass in the first argument counts 0: it is not part of the random weights. A random weight against a point
    mass is infinitely far; two point masses are 0 apart if equal and infinitely far otherwise.
    """
    mean, variance = mean.double(), variance.double()
    prior_mean, prior_variance = prior_mean.double(), prior_variance.double()
    point, prior_point = variance == 0, prior_variance == 0
    safe, safe_prior = torch.where(point, 1.0, variance), torch.where(prior_point, 1.0, prior_variance)
    shift = (mean - prior_mean).square() / safe_prior
    divergence = torch.where(point, 0.0, 0.5 * (_ratio_cost(safe, safe_prior) + shift))
    far = prior_point & ~(point & (mean == prior_mean))
    return torch.where(far, math.inf, divergence)


def _ratio_cost(variance: Tensor, prior_variance: Tensor) -> Tensor:
    """``r - 1 - log(r)`` of the ratio ``r`` of two positive variances: finite for any, and accurate relative to itself.

    Near ``r = 1``, where the terms cancel, ``log(1 + x) = 2 atanh(x / (2 + x))`` as a series.
    """
    excess = (variance - prior_variance) / prior_variance
    half = excess / (2.0 + excess)
    square = half.square()
    series = torch.zeros_like(square)
    for odd in range(13, 1, -2):
        series = series * square + 1.0 / odd
    near = half * (excess - 2.0 * square * series)
    return torch.where(excess.abs() < 0.1, near, excess - (variance.log() - prior_variance.log()))
