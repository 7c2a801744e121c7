"""The noise of several steps at once: many small draws cost their calls, one large one does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bayesadam import noise

_AHEAD = 2**16
"""Numbers drawn at a time, about."""


class Draws:
    """Standard normals for the members of a chunk, in the order of their steps.

    Args:
        sizes: Of the noise's tensors by noise index.
        samples: Per step.
        antithetic: Every second sample is the one before with the other sign.
        dtype: Of the result; the noise does not depend on it.
        device: Of the result.
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
        """What was drawn ahead: the members or their steps are others now."""
        self._steps, self._next = [], 0

    def take(self, seeds: Sequence[int], steps: Sequence[int], ahead: float) -> Tensor:
        """The noise of one step of the first members, ``(k, S, numel)``.

        Args:
            seeds: Of these members.
            steps: How many steps each has made.
            ahead: For how many steps from this one these members, and no others, will go on, unless :meth:`forget` is
                called before.
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
