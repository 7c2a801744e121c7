"""Shorter steps for noisy functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class AdaptiveRate:
    """A learning rate that follows the signal-to-noise ratio of the updates (Nomura, Akimoto and Ono 2023).

    Running averages of the updates and of their squared lengths give the signal-to-noise ratio. The rate rises where
    the ratio is above ``target`` times the rate, and falls where it is below. It is at most 1.

    Args:
        decay: Weight of a new update in the averages.
        target: Factor in this comparison.
    """

    def __init__(self, decay: float, target: float) -> None:
        self._decay, self._target = decay, target
        self._average: Tensor | float = 0.0
        self._power = 0.0
        self.value = 1.0

    def __call__(self, update: Tensor) -> float:
        """The rate after an update, given in coordinates in which ``q`` is the standard normal."""
        decay = self._decay
        self._average = (1.0 - decay) * self._average + decay * update
        self._power = (1.0 - decay) * self._power + decay * float(update.square().sum())
        signal = float(torch.as_tensor(self._average).square().sum())
        noise = self._power - signal
        ratio = (signal - decay / (2.0 - decay) * self._power) / noise if noise > 0 else 0.0
        change = min(1.0, max(-1.0, ratio / (self._target * self.value) - 1.0))
        self.value = min(1.0, self.value * math.exp(min(0.1 * self.value, decay) * change))
        return self.value


class Reliability:
    """Agreement of the ranks when the points of a step are evaluated twice, from 1 down to 0.

    While differences between points are large compared with the noise, steps are as long as without noise.
    """

    def __init__(self) -> None:
        self._correlation: float | None = None

    def observe(self, first: Tensor, second: Tensor) -> None:
        """Add two evaluations of the same points, ``(batch,)`` each."""
        ranks = torch.stack([values.argsort().argsort().double() for values in (first, second)])
        found = max(0.0, float(torch.corrcoef(ranks)[0, 1]))
        self._correlation = found if self._correlation is None else 0.7 * self._correlation + 0.3 * found

    @property
    def value(self) -> float:
        """The agreement: 0 up to a rank correlation of 1/2, and 1 at a correlation of 1."""
        return 0.0 if self._correlation is None else max(0.0, 2.0 * self._correlation - 1.0)
