"""The noise of several steps at once, since one large draw is faster than many small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bayesadam import noise

_AHEAD = 2**16
"""Approximate number of values that are drawn at a time."""


class Draws:
    """Standard normals for the steps of several members.

    Args:
        sizes: Sizes of the noise's tensors by noise index.
        samples: Number of samples per step.
        antithetic: Whether every second sample is the previous one with the opposite sign.
        like: Tensor with dtype and device of the result; the noise does not depend on them.
    """

    def __init__(self, sizes: Mapping[int, int], samples: int, antithetic: bool, like: Tensor) -> None:
        self._sizes, self._antithetic, self._like = sizes, antithetic, like
        self._samples = range(samples // 2 if antithetic else samples)
        self._coming: dict[tuple[int, ...], Tensor] = {}

    def take(self, seeds: Sequence[int], steps: Sequence[int], ahead: float) -> Tensor:
        """The noise of the next step of members with these seeds, ``(k, S, numel)``.

        Args:
            seeds: Seeds of the members.
            steps: Number of steps that each has made.
            ahead: Number of steps, from this one, that exactly these members will probably make.
        """
        if (*seeds, *steps) not in self._coming:
            most = _AHEAD // (len(seeds) * len(self._samples) * sum(self._sizes.values()))
            count = int(max(1, min(ahead, most)))
            following = [[step + i for step in steps] for i in range(count)]
            every = [step for several in following for step in several]
            many = list(seeds) * count
            eps = noise.normal_many(many, every, self._samples, self._sizes, device=self._like.device)
            eps = eps.to(self._like.dtype).view(count, len(seeds), *eps.shape[1:])
            eps = torch.stack((eps, -eps), dim=3).flatten(2, 3) if self._antithetic else eps
            self._coming = {(*seeds, *several): part for several, part in zip(following, eps, strict=True)}
        return self._coming[*seeds, *steps]
