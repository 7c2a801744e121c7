"""The data of all members, and the minibatches of an epoch: ragged sizes, nothing copied that is shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Pair = tuple[Tensor, Tensor]


def order(num_data: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order in which a member with this seed sees its data in an epoch, counted from 0: ``(num_data,)``.

    ``order(...)[i : i + batch_size]`` for ``i = 0, batch_size, ...`` are the minibatches; the last one may be smaller.
    A pure function of its arguments (NumPy's Philox, keyed by the seed and counted by the epoch), so that training
    resumes exactly, and a member can be trained alone on the same minibatches.
    """
    bits = np.random.Philox(key=seed, counter=[0, 0, 0, epoch])
    return np.random.Generator(bits).permutation(num_data)


@dataclass(frozen=True)
class Batch:
    """One minibatch of each of the first ``k`` members.

    Attributes:
        x: ``(k, M, ...)``.
        y: ``(k, M, ...)``.
        weight: ``(k, M)``: 1 over the size of the member's minibatch, 0 for rows that only fill it up; ``None`` where
            all are of the same size.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the data points: ``(k, S, M, ...)`` to ``(k, S)``, further axes averaged."""
        values = values.flatten(3).mean(-1) if values.ndim > 3 else values
        return values.mean(-1) if self.weight is None else (values * self.weight[:, None].to(values.dtype)).sum(-1)


class Pool:
    """The data sets of all members in one tensor, those that members share only once.

    Args:
        data: ``(x, y)`` of every member; the same tensors for members that share them.
        batch_size: Data points per minibatch.

    Attributes:
        batches: Minibatches per epoch of every member.
    """

    def __init__(self, data: Sequence[Pair], batch_size: int) -> None:
        distinct: dict[tuple[int, int], tuple[int, Pair]] = {}
        total = 0
        for x, y in data:
            if (id(x), id(y)) not in distinct:
                distinct[id(x), id(y)] = total, (x, y)
                total += len(x)
        pairs = [pair for _, pair in distinct.values()]
        self.x, self.y = (torch.cat(part) if len(part) > 1 else part[0] for part in zip(*pairs, strict=True))
        self.starts = [distinct[id(x), id(y)][0] for x, y in data]
        self.sizes = [len(x) for x, _ in data]
        self.batch_size = batch_size
        self.batches = [-(-size // batch_size) for size in self.sizes]

    def epoch(self, members: Sequence[int], seeds: Sequence[int], epoch: int) -> Iterator[Batch]:
        """The minibatches of an epoch for members sorted by falling number of minibatches.

        The ``i``-th has those members that still have one: as many as are left, from the front.
        """
        batch_size = self.batch_size
        sizes, counts = (np.array([own[member] for member in members]) for own in (self.sizes, self.batches))
        rows = np.empty((len(members), counts.max() * batch_size), dtype=np.int64)
        for row, member, seed in zip(rows, members, seeds, strict=True):
            size, start = self.sizes[member], self.starts[member]
            row[:size] = order(size, seed=seed, epoch=epoch)
            row[:size] += start
            row[size:] = start
        index = torch.from_numpy(rows).to(self.x.device)
        for i in range(counts.max()):
            active = int((counts > i).sum())
            here = np.minimum(sizes[:active] - i * batch_size, batch_size)
            width = int(here.max())
            wanted = index[:active, i * batch_size : i * batch_size + width]
            weight = None
            if here.min() < width:
                mask = np.arange(width) < here[:, None]
                weight = torch.from_numpy(mask / here[:, None]).to(self.x.device)
            x, y = (part.index_select(0, wanted.reshape(-1)) for part in (self.x, self.y))
            yield Batch(x.view(active, width, *x.shape[1:]), y.view(active, width, *y.shape[1:]), weight)
