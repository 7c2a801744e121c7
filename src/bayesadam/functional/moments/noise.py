"""Means and variances under independent additive, multiplicative or dropout noise (Bayer et al. 2015, section 2.3).

All functions are element-wise and exact for any distributions, since only means and variances enter. Arguments
broadcast. A variance of ``None`` is exactly zero, as an argument and as a result.
"""

from __future__ import annotations

import torch
from torch import Tensor


def add(
    mean: Tensor, variance: Tensor | None, noise_mean: Tensor | float, noise_variance: Tensor | float | None
) -> tuple[Tensor, Tensor | None]:
    """Moments of ``x + e`` with ``x`` and ``e`` independent, which are sums. Applied to weights, it is Gaussian
    weight noise.
    """
    total = mean + noise_mean
    if noise_variance is None:
        return total, variance
    if variance is None:
        return total, torch.zeros_like(total) + noise_variance
    return total, variance + noise_variance


def multiply(
    mean: Tensor, variance: Tensor | None, noise_mean: Tensor | float, noise_variance: Tensor | float | None
) -> tuple[Tensor, Tensor | None]:
    """Moments ``mean m`` and ``mean^2 v + m^2 u + u v`` of ``x e`` with independent ``x ~ (mean, u)`` and ``e ~ (m,
    v)``.
    """
    product = mean * noise_mean
    if noise_variance is None:
        return product, None if variance is None else variance * (noise_mean * noise_mean)
    spread = mean * mean * noise_variance
    if variance is None:
        return product, spread
    return product, spread + variance * (noise_mean * noise_mean + noise_variance)


def dropout(mean: Tensor, variance: Tensor | None, p: float) -> tuple[Tensor, Tensor | None]:
    """Moments under inverted dropout, in which ``x`` is 0 with probability ``p`` and otherwise divided by ``1 - p``.

    This is multiplicative noise with mean 1 and variance ``p / (1 - p)``. On a layer's inputs it is dropout, on weights
    drop-connect (Wan et al. 2013). As in PyTorch, ``p = 1`` gives zeros, and ``p = 0`` changes nothing.

    Args:
        mean: Means of any shape.
        variance: Variances of the same shape, or None.
        p: Probability in [0, 1].

    Raises:
        ValueError: ``p`` is outside [0, 1].
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be in [0, 1], got {p!r}")
    if p == 0.0:
        return mean, variance
    if p == 1.0:
        return mean * 0.0, None
    return multiply(mean, variance, 1.0, p / (1.0 - p))
