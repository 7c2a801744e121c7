"""Data of all members and the minibatches of an epoch, for data sets of different sizes, without copies of shared
data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Pair = tuple[Tensor, Tensor]

_GATHERED = 2**20
"""Approximate memory in bytes of the data that are gathered at a time, for as many steps as fit."""


def order(
    num_data: int, *, seed: int, epoch: int, replacement: bool = False, size: int | None = None
) -> NDArray[np.int64]:
    """The order in which a member with this seed sees its data in an epoch, counted from 0.

    ``order(...)[i : i + batch_size]`` for ``i = 0, batch_size, ...`` are the minibatches; the last one may be smaller.
    The order is a pure function of the arguments (NumPy's Philox, with the seed as key and the epoch as counter), so
    that a member can be trained alone on the same minibatches. A minibatch with all data keeps the data's own order,
    which gives the same result up to rounding.

    Args:
        num_data: Size of the data set.
        seed: Seed of the member.
        epoch: Number of the epoch, from 0.
        replacement: Whether to draw ``size`` data points with replacement; otherwise the order is a permutation.
        size: Number of draws with replacement, ``steps_per_epoch * batch_size``; default ``num_data``.

    Returns:
        Numbers of data points, ``(num_data,)``, or with replacement ``(size,)``.

    Raises:
        ValueError: A size is given without replacement.
    """
    if size is not None and not replacement:
        raise ValueError(f"size must be given with replacement=True only, got {size!r}")
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, epoch]))
    if replacement:
        return generator.integers(num_data, size=num_data if size is None else size)
    return generator.permutation(num_data)


@dataclass(frozen=True)
class Batch:
    """One minibatch of each of the first ``k`` members.

    Attributes:
        x: Inputs, ``(k, M, ...)``. They may be a view of the user's data and must not be written to.
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
            return values / values.shape[2] if values.shape[2] > 1 else values
        return values * self.weight[:, None, :, None].to(values.dtype)


def per_epoch(size: int, batch_size: int, steps_per_epoch: int | None = None) -> int:
    """Number of minibatches per epoch of ``size`` data points."""
    return steps_per_epoch or -(-size // batch_size)


class Pool:
    """The data sets of all members in one tensor; data that members share are stored once.

    Args:
        data: Pair ``(x, y)`` of every member; the same tensors for members that share them.
        batch_size: Number of data points per minibatch.
        replacement: Whether to draw minibatches with replacement, each of ``batch_size`` points.
        steps_per_epoch: Number of minibatches per epoch with replacement; default as many as without.
        weights: Weights of the data points of every member, ``(n,)``, with a mean of 1; ``None`` for equal weights.

    Attributes:
        batches: Number of minibatches per epoch of every member.
    """

    def __init__(
        self,
        data: Sequence[Pair],
        batch_size: int,
        *,
        replacement: bool = False,
        steps_per_epoch: int | None = None,
        weights: Sequence[Tensor] | None = None,
    ) -> None:
        distinct: dict[tuple[int, int], tuple[int, Pair]] = {}
        total, own = 0, []
        for member, (x, y) in enumerate(data):
            if (id(x), id(y)) not in distinct:
                distinct[id(x), id(y)] = total, (x, y)
                total += len(x)
                own.append(member)
        pairs = [pair for _, pair in distinct.values()]
        self.x, self.y = (torch.cat(part) if len(part) > 1 else part[0] for part in zip(*pairs, strict=True))
        self.weight = None if weights is None else torch.cat([weights[member] for member in own])
        self.starts = [distinct[id(x), id(y)][0] for x, y in data]
        self.sizes = [len(x) for x, _ in data]
        self.batch_size, self.replacement = batch_size, replacement
        self.batches = [per_epoch(size, batch_size, steps_per_epoch) for size in self.sizes]
        self._whole: tuple[tuple[int, ...], Batch | None] = (), None

    def epoch(self, members: Sequence[int], seeds: Sequence[int], epoch: int) -> Iterator[Batch]:
        """Yield the minibatches of an epoch, for members sorted by falling number of minibatches.

        The ``i``-th minibatch has the members that still have one, which are the first ones.
        """
        if not self.replacement and max(self.sizes[member] for member in members) <= self.batch_size:
            yield self._all(tuple(members))
            return
        batch_size = self.batch_size
        rows = np.empty((len(members), max(self.batches[member] for member in members) * batch_size), dtype=np.int64)
        drawn = []
        for row, member, seed in zip(rows, members, seeds, strict=True):
            size, start = self.sizes[member], self.starts[member]
            count = self.batches[member] * batch_size if self.replacement else size
            drawn_size = count if self.replacement else None
            row[:count] = order(size, seed=seed, epoch=epoch, replacement=self.replacement, size=drawn_size)
            row[:count] += start
            row[count:] = start
            drawn.append(count)
        index = torch.from_numpy(rows).to(self.x.device)
        counts = np.array(drawn)
        each = self.x[:1].nbytes + self.y[:1].nbytes
        i = 0
        while i * batch_size < rows.shape[1]:
            active = int((counts > i * batch_size).sum())
            here = np.minimum(counts[:active] - i * batch_size, batch_size)
            width = int(here.max())
            full = int(counts[:active].min()) // batch_size - i  # coming steps in which no minibatch is smaller
            steps = max(1, min(full, _GATHERED // (each * active * batch_size)))
            weight = None
            if here.min() < width or self.weight is not None:
                mask = np.arange(width) < here[:, None]
                weight = torch.from_numpy(mask / here[:, None]).to(self.x.device)
            wanted = index[:active, i * batch_size : i * batch_size + (steps - 1) * batch_size + width]
            wanted = wanted.view(active, steps, width).transpose(0, 1).reshape(-1)
            x, y = (part.index_select(0, wanted) for part in (self.x, self.y))
            parts = (part.view(steps, active, width, *part.shape[1:]).unbind(0) for part in (x, y))
            each_weight: Sequence[Tensor | None] = [weight] * steps
            if weight is not None and self.weight is not None:
                each_weight = (weight * self.weight[wanted].view(steps, active, width)).unbind(0)
            for here_x, here_y, here_weight in zip(*parts, each_weight, strict=True):
                yield Batch(here_x, here_y, here_weight)
            i += steps

    def _all(self, members: tuple[int, ...]) -> Batch:
        """All data of every member, made once; a view if they share it."""
        known, batch = self._whole
        if batch is None or known != members:
            batch = self._stacked(members)
            self._whole = members, batch
        return batch

    def _stacked(self, members: tuple[int, ...]) -> Batch:
        sizes = np.array([self.sizes[member] for member in members])
        starts = [self.starts[member] for member in members]
        width = int(sizes.max())
        if len(set(starts)) == 1:
            ranges = slice(starts[0], starts[0] + width)
            x, y = (part[ranges].expand(len(members), *part[ranges].shape) for part in (self.x, self.y))
            own = None if self.weight is None else (self.weight[ranges] / width).expand(len(members), width)
            return Batch(x, y, own)
        rows = np.array(starts)[:, None] + np.arange(width)
        mask = np.arange(width) < sizes[:, None]
        index = torch.from_numpy(np.where(mask, rows, rows[:, :1])).to(self.x.device)
        weight = None
        if not mask.all() or self.weight is not None:
            weight = torch.from_numpy(mask / sizes[:, None]).to(self.x.device)
        if weight is not None and self.weight is not None:
            weight = weight * self.weight[index]
        return Batch(self.x[index], self.y[index], weight)
