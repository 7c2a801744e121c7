"""Samples of small networks with independent weights, several of which are drawn at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesadam import noise

NUMBERS = 2**15
"""Number of weights of all samples that are drawn at once, up to which this is faster than one after another."""
SAMPLES = 2**28
"""Number of samples that :mod:`bayesadam.noise` has."""
GROWTH = 8
"""Factor by which the number of samples grows from one draw to the next."""


def fits(mean: Mapping[str, Tensor], std: Mapping[str, Tensor]) -> bool:
    """Whether weights are few enough for :class:`Ahead`, on a CPU, and means and standard deviations of one dtype."""
    tensors = [*(mean[name] for name in std), *std.values()]
    few = 0 < sum(value.numel() for value in std.values()) <= NUMBERS // GROWTH
    return few and all(
        value.numel() and value.device.type == "cpu" and value.dtype == tensors[0].dtype for value in tensors
    )


class Ahead:
    """Function that writes samples in place, as the ``writer`` of a :class:`bayesadam.DiagonalGaussian` is.

    One sample is drawn alone; if the next one is asked for, it is drawn with those that follow. The means are those at
    the time of construction.

    Args:
        mean: Mean of every tensor by name.
        std: Standard deviations of those that are random; see :func:`fits`.
        seed: Seed of the samples.
    """

    def __init__(self, mean: Mapping[str, Tensor], std: Mapping[str, Tensor], seed: int) -> None:
        self._fixed = {name: value for name, value in mean.items() if name not in std}
        self._random = {name: mean[name] for name in std}
        self._sizes = {index: value.numel() for index, (name, value) in enumerate(mean.items()) if name in std}
        self._mean, self._std = (
            torch.cat([value.detach().flatten() for value in part.values()]) for part in (self._random, std)
        )
        self._seed = seed
        self._first = 0
        self._samples: list[tuple[Tensor, ...]] = []

    @torch.no_grad()
    def __call__(self, targets: Mapping[str, Tensor], number: int | None) -> None:
        """Write sample ``number``, or the mean for ``None``."""
        values = self._random.values() if number is None else self._sample(number)
        torch._foreach_copy_(
            [targets[name] for name in (*self._fixed, *self._random)], [*self._fixed.values(), *values]
        )
        torch.clear_autocast_cache()

    def _sample(self, number: int) -> tuple[Tensor, ...]:
        row = number - self._first
        if not 0 <= row < len(self._samples):
            follows = row > 0 and row == len(self._samples)
            many = min(GROWTH * row, NUMBERS // len(self._mean), SAMPLES - number) if follows else 1
            self._samples = self._drawn(range(number, number + max(1, many)))
            self._first, row = number, 0
        return self._samples[row]

    def _drawn(self, numbers: range) -> list[tuple[Tensor, ...]]:
        cpu = torch.device("cpu")
        drawn = noise.normal_many([self._seed], [0], numbers, self._sizes, stream=noise.POSTERIOR, device=cpu)
        values = torch.addcmul(self._mean, drawn[0].to(self._mean.dtype), self._std)
        parts = zip(torch.split(values, list(self._sizes.values()), 1), self._random.values(), strict=True)
        return list(zip(*(part.reshape(len(numbers), *mean.shape).unbind() for part, mean in parts), strict=True))
