"""What goes from layer to layer: the mean and the variance of every unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Independent units.

    Attributes:
        mean: Of any shape.
        variance: Of the same shape, not negative; ``None``: exactly zero.
        covariance: Of the outputs of a data point, ``(N, K, K)`` for a mean ``(N, K)``, where it was asked for; its
            diagonal is ``variance``.
    """

    mean: Tensor
    variance: Tensor | None = None
    covariance: Tensor | None = None

    def spread(self) -> Tensor:
        """The variance; a tensor even where it is zero."""
        return torch.zeros_like(self.mean) if self.variance is None else self.variance

    def moved(self, move: Callable[[Tensor], Tensor]) -> Moments:
        """Elements put elsewhere, by the same function of mean and variance."""
        return Moments(move(self.mean), None if self.variance is None else move(self.variance))
