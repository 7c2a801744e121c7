"""Moments: the mean and the variance of every unit, which pass from layer to layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Mean and variance of independent units.

    Attributes:
        mean: Means, of any shape.
        variance: Variances of the same shape, not negative; ``None`` stands for zeros.
        covariance: Covariance of the outputs of a data point, ``(N, K, K)`` for a mean ``(N, K)``, if it was requested;
            its diagonal is ``variance``.
    """

    mean: Tensor
    variance: Tensor | None = None
    covariance: Tensor | None = None

    def spread(self) -> Tensor:
        """Return the variance as a tensor, even if it is zero."""
        return torch.zeros_like(self.mean) if self.variance is None else self.variance

    def moved(self, move: Callable[[Tensor], Tensor]) -> Moments:
        """Move elements to other places, by the same function of mean and variance."""
        return Moments(move(self.mean), None if self.variance is None else move(self.variance))
