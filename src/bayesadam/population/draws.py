"""The noise of several steps at once, since one large draw is faster than many small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bayesadam import noise

_AHEAD = 2**16
"""Approximate number of values that are drawn at a time."""


class Draws:
    """Standard normals for the members of a chunk, in the order of their steps.

    Args:
        sizes: Sizes of the noise's tensors by noise index.
        samples: Number of samples per step.
        antithetic: Whether every second sample is the previous one with the opposite sign.
        dtype: Dtype of the result; the noise does not depend on it.
        device: Device of the result.
    """

    def __init__(
        self,
        sizes: Mapping[int, int],
        samples: int,
        antithetic: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._sizes, self._antithetic = sizes, antithetic
        self._samples = range(samples // 2 if antithetic else samples)
        self._dtype, self._device = dtype, device
        self._scratch = noise.Scratch()
        self._steps: list[Tensor] = []
        self._next = 0

    def forget(self) -> None:
        """Discard noise that was drawn ahead, because the members or their steps have changed."""
        self._steps, self._next = [], 0

    def take(self, seeds: Sequence[int], steps: Sequence[int], ahead: float) -> Tensor:
        """The noise of one step of the first members, ``(k, S, numel)``.

        Args:
            seeds: Seeds of these members.
            steps: Number of steps that each has made.
            ahead: Number of steps, from this one, that exactly these members will make, unless :meth:`forget` is called
                before.
        """
        if self._next == len(self._steps):
            self._draw(seeds, steps, ahead)
        self._next += 1
        return self._steps[self._next - 1]

    def _draw(self, seeds: Sequence[int], steps: Sequence[int], ahead: float) -> None:
        many, numel = len(seeds), sum(self._sizes.values())
        count = int(max(1, min(ahead, _AHEAD // (many * len(self._samples) * numel))))
        eps = noise.normal_many(
            list(seeds) * count,
            [step + i for i in range(count) for step in steps],
            self._samples,
            self._sizes,
            device=self._device,
            scratch=self._scratch,
        ).to(self._dtype)
        if self._antithetic:
            eps = torch.stack((eps, -eps), dim=2).flatten(1, 2)
        self._steps = list(eps.view(count, many, -1, numel).unbind(0))
        self._next = 0
