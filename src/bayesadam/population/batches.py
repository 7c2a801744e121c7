"""Data of all members and the minibatches of an epoch, for data sets of different sizes, without copies of shared
data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam.native.device import working_set

Pair = tuple[Tensor, Tensor]

_GATHERED = 2**20
"""Approximate memory in bytes of the data that are gathered at a time, for as many steps as fit."""


def order(num_data: int, *, seed: int, epoch: int, size: int | None = None) -> NDArray[np.int64]:
    """The order in which a member with this seed sees its data in an epoch, counted from 0.

    ``order(...)[i : i + batch_size]`` for ``i = 0, batch_size, ...`` are the minibatches; the last one may be smaller.
    The order is a pure function of the arguments (NumPy's Philox, with the seed as key and the epoch as counter), so
    that a member can be trained alone on the same minibatches. A minibatch with all data keeps the data's own order,
    which gives the same result up to rounding.

    Args:
        num_data: Size of the data set.
        seed: Seed of the member.
        epoch: Number of the epoch, from 0.
        size: Number of draws with replacement, ``steps_per_epoch * batch_size``; otherwise the order is a permutation.

    Returns:
        Numbers of data points, ``(num_data,)``, or with replacement ``(size,)``.
    """
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, epoch]))
    return generator.permutation(num_data) if size is None else generator.integers(num_data, size=size)


def data_owners(data: Sequence[Sequence[Tensor]]) -> list[int]:
    """For every member, the number of the first member that has the same tensors, which may be itself."""
    first: dict[tuple[int, ...], int] = {}
    return [first.setdefault(tuple(map(id, tensors)), member) for member, tensors in enumerate(data)]


@dataclass(frozen=True)
class Batch:
    """One minibatch of each of the first ``k`` members.

    Attributes:
        x: Inputs, ``(k, M, ...)``, which must not be written to.
        y: Targets, ``(k, M, ...)``, which must not be written to.
        weight: Weights, ``(k, M)``: 1 over the size of the member's minibatch, times the data point's own weight, and 0
            for rows of padding; ``None`` if all have the same size and weight.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the data points, from ``(k, S, M, ...)`` to ``(k, S)``; further axes are averaged."""
        values = values.flatten(3).mean(-1) if values.ndim > 3 else values
        return values.mean(-1) if self.weight is None else (values * self.weight[:, None].to(values.dtype)).sum(-1)

    def shares(self, values: Tensor) -> Tensor:
        """Contribution of every data point to the mean: ``(k, S, M, D)`` times its weight."""
        if self.weight is None:
            return values / values.shape[2]
        return values * self.weight[:, None, :, None].to(values.dtype)


class Pool:
    """The data sets of all members in one tensor; data that members share, with their weights, are stored once.

    Args:
        data: Pair ``(x, y)`` of every member; the same tensors for members that share them.
        batch_size: Number of data points per minibatch.
        steps_per_epoch: Number of minibatches per epoch, each of ``batch_size`` points drawn with replacement; with
            ``None``, every data point is in one minibatch of an epoch.
        weights: Weights of the data points of every member, ``(n,)``, with a mean of 1; ``None`` for equal weights.

    Attributes:
        sizes: Size of every member's data.
        batches: Number of minibatches per epoch of every member.
        widths: Size of the largest minibatch of every member.
    """

    def __init__(
        self,
        data: Sequence[Pair],
        batch_size: int,
        *,
        steps_per_epoch: int | None = None,
        weights: Sequence[Tensor] | None = None,
    ) -> None:
        stored: list[tuple[Tensor, ...]] = list(data)
        if weights is not None:
            stored = [(*pair, weight) for pair, weight in zip(data, weights, strict=True)]
        owners = data_owners(stored)
        distinct = sorted(set(owners))
        self.sizes = [len(x) for x, _ in data]
        ends = np.cumsum([self.sizes[member] for member in distinct])
        first = dict(zip(distinct, [0, *ends[:-1].tolist()], strict=True))
        self._starts = [first[owner] for owner in owners]
        parts = zip(*(stored[member] for member in distinct), strict=True)
        self._x, self._y, *weight = (torch.cat(part) if len(part) > 1 else part[0] for part in parts)
        self._weight = weight[0] if weight else None
        self._batch_size, self._replacement = batch_size, steps_per_epoch is not None
        self.batches = [steps_per_epoch or -(-size // batch_size) for size in self.sizes]
        self.widths = [batch_size if self._replacement else min(batch_size, size) for size in self.sizes]
        self._whole: tuple[Any, ...] = (), None

    def epoch(self, members: Sequence[int], seeds: Sequence[int], epoch: int) -> Iterator[Batch]:
        """Yield the minibatches of an epoch, for members sorted by falling number of minibatches.

        The ``i``-th minibatch has the members that still have one, which are the first ones.
        """
        if not self._replacement and max(self.sizes[member] for member in members) <= self._batch_size:
            yield self._all(tuple(members))
            return
        batch_size = self._batch_size
        counts = np.array([self.batches[m] * batch_size if self._replacement else self.sizes[m] for m in members])
        rows = np.empty((len(members), max(self.batches[member] for member in members) * batch_size), dtype=np.int64)
        for row, member, seed, count in zip(rows, members, seeds, counts, strict=True):
            row[:] = self._starts[member]
            row[:count] += order(self.sizes[member], seed=seed, epoch=epoch, size=count if self._replacement else None)
        index = torch.from_numpy(rows).to(self._x.device)
        bytes_per_point = self._x[:1].nbytes + self._y[:1].nbytes
        i = 0
        while i * batch_size < rows.shape[1]:
            active = int((counts > i * batch_size).sum())
            sizes = np.minimum(counts[:active] - i * batch_size, batch_size)
            width = int(sizes.max())
            full = int(counts[:active].min()) // batch_size - i  # coming steps in which no minibatch is smaller
            steps = max(1, min(full, working_set(self._x.device, _GATHERED) // (bytes_per_point * active * batch_size)))
            gathered = index[:active, i * batch_size : i * batch_size + (steps - 1) * batch_size + width]
            yield from self._gathered(gathered.view(active, steps, width).transpose(0, 1), sizes)
            i += steps

    def _gathered(self, index: Tensor, sizes: NDArray[np.int64]) -> Iterator[Batch]:
        """Minibatches of some steps, from indices ``(steps, k, width)`` and the sizes of the members' minibatches."""
        steps, _, width = index.shape
        flat = index.reshape(-1)
        y_rows = self._y.flatten() if self._y[:1].numel() == 1 else self._y  # numbers are gathered faster than rows
        x = self._x.index_select(0, flat).unflatten(0, index.shape).unbind(0)
        y = y_rows.index_select(0, flat).view(*index.shape, *self._y.shape[1:]).unbind(0)
        weights: Sequence[Tensor | None] = [None] * steps
        if sizes.min() < width or self._weight is not None:
            mask = np.arange(width) < sizes[:, None]
            share = torch.from_numpy(mask / sizes[:, None]).to(self._x.device)
            weights = [share] * steps if self._weight is None else (share * self._weight[index]).unbind(0)
        for own_x, own_y, weight in zip(x, y, weights, strict=True):
            yield Batch(own_x, own_y, weight)

    def _all(self, members: tuple[int, ...]) -> Batch:
        """All data of every member, gathered once."""
        if self._whole[0] != members:
            sizes, starts = (np.array([values[member] for member in members]) for values in (self.sizes, self._starts))
            rows = starts[:, None] + np.minimum(np.arange(sizes.max()), sizes[:, None] - 1)
            (batch,) = self._gathered(torch.from_numpy(rows)[None].to(self._x.device), sizes)
            if batch.x.ndim == 3:  # products with it are fastest in this layout of the memory
                batch = replace(batch, x=batch.x.mT.contiguous().mT)
            self._whole = members, batch
        whole: Batch = self._whole[1]
        return whole
