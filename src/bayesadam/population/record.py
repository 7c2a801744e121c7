"""Results and history of every member, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayesadam.likelihoods import Likelihood
from bayesadam.population.batches import Pair
from bayesadam.population.chunk import Chunk
from bayesadam.population.mapped import MappedObjective
from bayesadam.population.objective import NegativeLogLikelihood, Objective
from bayesadam.population.population import Population

Callback = Callable[[int, list[int], Population], None]


class Record:
    """The results of all ``P`` members, in the order of the population.

    Attributes:
        rows: ``"mean"``, ``"variance"`` and ``"state/<name>"``, each ``(P, ...)``: the last ones, or the best by
            validation.
        history: ``"loss"``, and ``"validation"`` if there are validation data: ``(P, epochs)``.
        epochs: Number of epochs so far, ``(P,)``.
        best: Lowest validation value so far, ``(P,)``.
        best_epoch: Epoch of that value, ``(P,)``.
        stopped: Code of the reason why a member ended, ``(P,)``: an index into ``REASONS``.
    """

    REASONS = ("", "epochs", "patience", "nonfinite")

    def __init__(
        self,
        objective: NegativeLogLikelihood | MappedObjective,
        criteria: Sequence[Likelihood | Objective],
        hypers: Sequence[Mapping[str, Any]],
        means: Tensor,
        state: Sequence[str],
        epochs: int,
        working_set: int,
    ) -> None:
        count = len(means)
        self.rows = {"mean": means.clone(), "variance": means.new_zeros(count, objective.perturbed)}
        self.rows |= {f"state/{name}": torch.zeros_like(means) for name in state}
        self.history = {"loss": torch.full((count, epochs), math.nan, dtype=torch.float64)}
        self.epochs = torch.zeros(count, dtype=torch.int64)
        self.best = torch.full((count,), math.inf, dtype=torch.float64)
        self.best_epoch = torch.zeros(count, dtype=torch.int64)
        self.stopped = torch.zeros(count, dtype=torch.int64)
        self._objective, self._criteria, self._hypers = objective, criteria, hypers
        self._working_set = working_set
        self._held_out: list[Pair] | None = None
        self._samples, self._patience = 1, math.inf

    def watch(self, held_out: list[Pair], samples: int, patience: int | None) -> None:
        """Record the density on held-out data after every epoch, and stop members early if ``patience`` is a number."""
        self._held_out, self._samples = held_out, samples
        self._patience = math.inf if patience is None else patience
        self.history["validation"] = torch.full_like(self.history["loss"], math.nan)

    def after_epoch(self, part: Chunk, epoch: int, loss: Tensor, on_epoch: Callback | None) -> None:
        """Record an epoch of a chunk; members that end are removed from it."""
        members, index = part.members, torch.tensor(part.members)
        rows = cache(part.rows)
        self.history["loss"][index, epoch] = loss.cpu()
        self.epochs[index] = epoch + 1
        better = None
        if self._held_out is not None:
            values = self._validate(self.population(members, rows(), epoch), members)
            self.history["validation"][index, epoch] = values
            if self._patience < math.inf:
                better = values < self.best[index]
                self.best[index[better]] = values[better]
                self.best_epoch[index[better]] = epoch
                better |= self.best[index].isposinf()  # nothing good so far: the last
        ended = self._ended(part, epoch, index)
        if better is None and ended:  # the last is the best
            better = torch.tensor([row in ended for row in range(len(members))])
        if better is not None and better.any():
            for name, value in rows().items():
                self.rows[name][index[better].to(value.device)] = value[better.to(value.device)]
        if on_epoch is not None:
            on_epoch(epoch, list(members), self.population(members, rows(), epoch))
        for row, reason in ended.items():
            self.stopped[members[row]] = self.REASONS.index(reason)
        if ended:
            part.keep([row for row in range(len(members)) if row not in ended])

    def _ended(self, part: Chunk, epoch: int, index: Tensor) -> dict[int, str]:
        """Rows of the members that end after an epoch, with the reason."""
        ended = {}
        if epoch + 1 == part.epochs:
            ended = dict.fromkeys(range(len(index)), "epochs")
        elif self._patience < math.inf:
            late = epoch - self.best_epoch[index] >= self._patience
            ended = dict.fromkeys(late.nonzero().flatten().tolist(), "patience")
        return ended | dict.fromkeys(part.bad, "nonfinite")

    @torch.no_grad()
    def _validate(self, population: Population, members: Sequence[int]) -> Tensor:
        """Mean negative log predictive density of members on their held-out data."""
        assert self._held_out is not None
        pairs = [self._held_out[member] for member in members]
        predictions = population.predict([x for x, _ in pairs], mc_samples=self._samples)
        values = [-pred.log_prob(y).double().mean() for pred, (_, y) in zip(predictions, pairs, strict=True)]
        return torch.stack(values).cpu()

    def population(self, members: Sequence[int], rows: Mapping[str, Tensor], epoch: int | None = None) -> Population:
        """Some of the members with the given rows, as they are after an epoch, or at the end."""
        index = torch.tensor(list(members))
        history: Mapping[str, Tensor] = _Snapshot(self.history, index, epoch)
        return Population(
            self._objective.networks.select(index.to(rows["mean"].device)),
            [self._criteria[member] for member in members],
            self._objective.layout,
            rows["mean"],
            rows["variance"],
            {name.removeprefix("state/"): value for name, value in rows.items() if name.startswith("state/")},
            [self._hypers[member] for member in members],
            dict(history) if epoch is None else history,
            self.epochs[index],
            [self.REASONS[code] for code in self.stopped[index].tolist()],
            self._working_set,
        )


class _Snapshot(Mapping[str, Tensor]):
    """The history of some members until an epoch, which is copied only when it is read."""

    def __init__(self, history: Mapping[str, Tensor], index: Tensor, epoch: int | None) -> None:
        self._history, self._index, self._epoch = history, index, epoch

    def __getitem__(self, name: str) -> Tensor:
        values = self._history[name][self._index]
        if self._epoch is not None:
            values[:, self._epoch + 1 :] = math.nan
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._history)

    def __len__(self) -> int:
        return len(self._history)
