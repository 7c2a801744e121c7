"""Means and variances under independent noise: added, multiplied, or dropping out (Bayer et al. 2015, section 2.2).

Element-wise and exact whatever the distributions, since only means and variances enter. All arguments broadcast. A
variance of ``None`` is exactly zero, as an argument and as a result.
"""

from __future__ import annotations

import torch
from torch import Tensor


def add(
    mean: Tensor, variance: Tensor | None, noise_mean: Tensor | float, noise_variance: Tensor | float | None
) -> tuple[Tensor, Tensor | None]:
    """Of ``x + e`` with ``x`` and ``e`` independent: the sums. On weights: Gaussian weight noise."""
    total = mean + noise_mean
    if noise_variance is None:
        return total, variance
    if variance is None:
        return total, torch.zeros_like(total) + noise_variance
    return total, variance + noise_variance


def multiply(
    mean: Tensor, variance: Tensor | None, noise_mean: Tensor | float, noise_variance: Tensor | float | None
) -> tuple[Tensor, Tensor | None]:
    """Of ``x e`` with ``x ~ (mean, u)`` and ``e ~ (m, v)`` independent: ``mean m`` and ``mean^2 v + m^2 u + u v``."""
    product = mean * noise_mean
    if noise_variance is None:
        return product, None if variance is None else variance * (noise_mean * noise_mean)
    spread = mean * mean * noise_variance
    if variance is None:
        return product, spread
    return product, spread + variance * (noise_mean * noise_mean + noise_variance)


def dropout(mean: Tensor, variance: Tensor | None, p: float) -> tuple[Tensor, Tensor | None]:
    """Under inverted dropout: each ``x`` is 0 with probability ``p``, and else divided by ``1 - p``.

    Noise with mean 1 and variance ``p / (1 - p)``. On a layer's inputs it is dropout, on weights drop-connect
    (Wan et al. 2013). As in PyTorch, ``p = 1`` leaves zeros, and ``p = 0`` what was there.

    Args:
        mean: Any shape.
        variance: The same shape, or None.
        p: In [0, 1].

    Raises:
        ValueError: If ``p`` is outside [0, 1].
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be in [0, 1], got {p!r}")
    if p == 0.0:
        return mean, variance
    if p == 1.0:
        return mean * 0.0, None
    return multiply(mean, variance, 1.0, p / (1.0 - p))
