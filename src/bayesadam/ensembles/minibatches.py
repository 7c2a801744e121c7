"""The minibatches of all members of an ensemble, from tensors or from a ``DataLoader``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bayesadam.checks import check_pair
from bayesadam.population import Pair, order

Data = Pair | DataLoader[Pair]


class Minibatch(NamedTuple):
    """One minibatch of every member.

    Attributes:
        x: Inputs, ``(members, M, ...)``, or ``(M, ...)`` if all members have the same.
        y: Targets, ``(members, M, ...)`` or ``(M, ...)``.
        is_shared: Whether all members have the same.
    """

    x: Tensor
    y: Tensor
    is_shared: bool

    def of(self, member: int) -> Pair:
        """The minibatch of one member."""
        return (self.x, self.y) if self.is_shared else (self.x[member], self.y[member])

    def stacked(self, members: int) -> Pair:
        """Inputs and targets with the axis of the members."""
        if not self.is_shared:
            return self.x, self.y
        return self.x.expand(members, *self.x.shape), self.y.expand(members, *self.y.shape)


def minibatches(
    data: Data, seeds: Sequence[int], batch_size: int, epoch: int, device: torch.device
) -> Iterator[Minibatch]:
    """Yield the minibatches of an epoch, counted from 0.

    Tensors are seen by each member in the order of its own seed (:func:`bayesadam.population.order`). A loader is read
    once for all members; its order is that of torch's generator, which is seeded by the first seed and the epoch.
    """
    if isinstance(data, DataLoader):
        torch.manual_seed(int(np.random.SeedSequence([seeds[0], epoch]).generate_state(1)[0]))
        for batch in data:
            check_pair(tuple(batch))
            x, y = batch
            yield Minibatch(x.to(device, non_blocking=True), y.to(device, non_blocking=True), True)
        return
    orders = np.stack([order(len(data[0]), seed=seed, epoch=epoch) for seed in seeds])
    for rows in torch.split(torch.from_numpy(orders).to(data[0].device), batch_size, dim=1):
        chosen = rows.flatten()
        x, y = (part.index_select(0, chosen).view(*rows.shape, *part.shape[1:]) for part in data)
        yield Minibatch(x, y, False)
