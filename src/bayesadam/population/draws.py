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
        like: Tensor with dtype and device of the result; the noise does not depend on them.
    """

    def __init__(self, sizes: Mapping[int, int], samples: int, antithetic: bool, like: Tensor) -> None:
        self._sizes, self._antithetic, self._like = sizes, antithetic, like
        self._samples = range(samples // 2 if antithetic else samples)
        self._scratch = noise.Scratch()
        self.forget()

    def forget(self) -> None:
        """Discard noise that was drawn ahead, because the members or their steps have changed."""
        self._coming: list[Tensor] = []

    def take(self, seeds: Sequence[int], steps: Sequence[int], ahead: float) -> Tensor:
        """The noise of one step of the first members, ``(k, S, numel)``.

        Args:
            seeds: Seeds of these members.
            steps: Number of steps that each has made.
            ahead: Number of steps, from this one, that exactly these members will make, unless :meth:`forget` is called
                before.
        """
        if not self._coming:
            many, numel = len(seeds), sum(self._sizes.values())
            count = int(max(1, min(ahead, _AHEAD // (many * len(self._samples) * numel))))
            eps = noise.normal_many(
                list(seeds) * count,
                [step + i for i in range(count) for step in steps],
                self._samples,
                self._sizes,
                device=self._like.device,
                scratch=self._scratch,
            ).to(self._like.dtype)
            if self._antithetic:
                eps = torch.stack((eps, -eps), dim=2).flatten(1, 2)
            self._coming = list(eps.view(count, many, -1, numel).unbind(0))[::-1]
        return self._coming.pop()
