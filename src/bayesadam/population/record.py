"""Results and history of every member, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayesadam.likelihoods import Likelihood
from bayesadam.population.batches import Pair
from bayesadam.population.chunk import Chunk
from bayesadam.population.losses import Losses
from bayesadam.population.members import Setup
from bayesadam.population.objective import Objective
from bayesadam.population.population import Population

Callback = Callable[[int, list[int], Population], None]
VALIDATION_SAMPLES = 16
"""Number of posterior samples for the density on validation data."""


class Record:
    """The results of all ``P`` members, in the order of the population.

    Args:
        losses: Losses of all members.
        criteria: One likelihood or objective per member.
        setup: Hyper-parameters and initial tensors of all members.
        epochs: Number of epochs of the whole training.
        held_out: Validation data of every member, whose density is recorded after every epoch, if there are any.
        patience: Number of epochs without improvement after which a member stops.

    Attributes:
        result: All members with their last tensors, or the best by validation.
    """

    def __init__(
        self,
        losses: Losses,
        criteria: Sequence[Likelihood | Objective],
        setup: Setup,
        epochs: int,
        held_out: Sequence[Pair] | None,
        patience: int | None,
    ) -> None:
        means, count = setup.tensors["mean"], len(criteria)
        self._tensors = {name: torch.empty_like(means) for name in ("mean", "variance", *setup.rule.state)}
        names = ("loss",) if held_out is None else ("loss", "validation")
        host: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
        self._curves = {name: torch.full((count, epochs), math.nan, **host) for name in names}
        zeros = torch.zeros(count, dtype=torch.int64, device="cpu")
        self.result = Population(
            losses, criteria, setup.hypers, self._tensors, self._curves, zeros, [""] * count, range(count)
        )
        self._best, self._best_epoch = torch.full((count,), math.inf, **host), zeros.clone()
        self._held_out, self._patience = held_out, math.inf if patience is None else patience

    def after_epoch(self, chunk: Chunk, epoch: int, loss: Tensor, on_epoch: Callback | None) -> None:
        """Record an epoch of a chunk; members that end are removed from it."""
        members, index = list(chunk.members), torch.tensor(chunk.members, device="cpu")
        tensors = cache(chunk.tensors)
        self._curves["loss"][index, epoch] = loss.cpu()
        self.result.epochs[index] = epoch + 1
        is_result = torch.zeros(len(members), dtype=torch.bool, device="cpu")
        if self._held_out is not None:
            values = self._validate(self.result._with_tensors(members, tensors()), members)
            self._curves["validation"][index, epoch] = values
            if self._patience < math.inf:
                is_better = values < self._best[index]
                self._best[index[is_better]] = values[is_better]
                self._best_epoch[index[is_better]] = epoch
                is_result = is_better | self._best[index].isposinf()  # nothing good so far: the last
        ended = self._ended(chunk, epoch, index)
        if self._patience == math.inf:  # the last is the best
            is_result[list(ended)] = True
        if is_result.any():
            device = self._tensors["mean"].device
            rows, chosen = is_result.nonzero().flatten().to(device), index[is_result].to(device)
            for name, value in tensors().items():
                self._tensors[name][chosen] = value[rows]
        if on_epoch is not None:
            on_epoch(epoch, list(members), self.result._with_tensors(members, tensors()))
        for row, reason in ended.items():
            self.result.stopped[members[row]] = reason
        if ended:
            chunk.keep([row for row in range(len(members)) if row not in ended])

    def _ended(self, chunk: Chunk, epoch: int, index: Tensor) -> dict[int, str]:
        """Rows of the members that end after an epoch, with the reason."""
        ended = {}
        if epoch + 1 == self._curves["loss"].shape[1]:
            ended = dict.fromkeys(range(len(index)), "epochs")
        elif self._patience < math.inf:
            late = epoch - self._best_epoch[index] >= self._patience
            ended = dict.fromkeys(late.nonzero().flatten().tolist(), "patience")
        return ended | dict.fromkeys(chunk.failed, "nonfinite")

    @torch.no_grad()
    def _validate(self, population: Population, members: Sequence[int]) -> Tensor:
        """Mean negative log predictive density of members on their held-out data."""
        assert self._held_out is not None
        pairs = [self._held_out[member] for member in members]
        predictions = population.predict([x for x, _ in pairs], mc_samples=VALIDATION_SAMPLES)
        values = [-pred.log_prob(y).double().mean() for pred, (_, y) in zip(predictions, pairs, strict=True)]
        return torch.stack(values).cpu()
