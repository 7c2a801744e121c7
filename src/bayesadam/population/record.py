"""What becomes of every member: results, history, and who stops when."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesadam.likelihoods import Likelihood
from bayesadam.population.batches import Pair
from bayesadam.population.chunk import Chunk
from bayesadam.population.objective import NegativeLogLikelihood
from bayesadam.population.population import Population

Callback = Callable[[int, list[int], Population], None]


class Record:
    """The results of all ``P`` members, in the order of the population.

    Attributes:
        rows: ``"mean"``, ``"variance"`` and ``"state/<name>"``, each ``(P, ...)``: the last, or the best by validation.
        history: ``"loss"``, and ``"validation"`` if watched: ``(P, epochs)``.
        epochs: Trained so far, ``(P,)``.
        best: Lowest validation value so far, ``(P,)``.
        best_epoch: When that was, ``(P,)``.
        stopped: Code of why a member ended, ``(P,)``: a place in ``REASONS``.
    """

    REASONS = ("", "epochs", "patience", "nonfinite")

    def __init__(
        self,
        objective: NegativeLogLikelihood,
        likelihoods: Sequence[Likelihood],
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
        self._objective, self._likelihoods, self._hypers = objective, likelihoods, hypers
        self._working_set = working_set
        self._held_out: list[Pair] | None = None
        self._samples, self._patience = 1, math.inf

    def watch(self, held_out: list[Pair], samples: int, patience: int | None) -> None:
        """Record the density on held-out data after every epoch, and stop by it if ``patience`` is a number."""
        self._held_out, self._samples = held_out, samples
        self._patience = math.inf if patience is None else patience
        self.history["validation"] = torch.full_like(self.history["loss"], math.nan)

    def after_epoch(self, part: Chunk, epoch: int, loss: Tensor, on_epoch: Callback | None) -> None:
        """Note an epoch of a chunk, whose members that end are taken out of it."""
        members = part.members
        index = torch.tensor(members)
        self.history["loss"][index, epoch] = loss.cpu()
        self.epochs[index] = epoch + 1
        rows = part.rows()
        better = torch.ones(len(members), dtype=torch.bool)
        if self._held_out is not None:
            values = self._validate(self.population(members, rows), members)
            self.history["validation"][index, epoch] = values
            if self._patience < math.inf:
                better = values < self.best[index]
                self.best[index[better]] = values[better]
                self.best_epoch[index[better]] = epoch
                better |= self.best[index].isposinf()  # nothing good so far: the last
        for name, value in rows.items():
            self.rows[name][index[better].to(value.device)] = value[better.to(value.device)]
        if on_epoch is not None:
            on_epoch(epoch, list(members), self.population(members, rows))
        going = []
        for row, member in enumerate(members):
            if row in part.bad:
                self.stopped[member] = self.REASONS.index("nonfinite")
            elif epoch + 1 == part.epochs:
                self.stopped[member] = self.REASONS.index("epochs")
            elif epoch - int(self.best_epoch[member]) >= self._patience:
                self.stopped[member] = self.REASONS.index("patience")
            else:
                going.append(row)
        if len(going) < len(members):
            part.keep(going)

    @torch.no_grad()
    def _validate(self, population: Population, members: Sequence[int]) -> Tensor:
        """Mean negative log predictive density of members on their held-out data."""
        assert self._held_out is not None
        pairs = [self._held_out[member] for member in members]
        predictions = population.predict([x for x, _ in pairs], mc_samples=self._samples)
        values = [-pred.log_prob(y).double().mean() for pred, (_, y) in zip(predictions, pairs, strict=True)]
        return torch.stack(values).cpu()

    def population(self, members: Sequence[int], rows: Mapping[str, Tensor]) -> Population:
        """Some of the members, with the given rows for them."""
        index = torch.tensor(list(members))
        return Population(
            self._objective.networks.select(index.to(rows["mean"].device)),
            [self._likelihoods[member] for member in members],
            self._objective.layout,
            rows["mean"],
            rows["variance"],
            {name.removeprefix("state/"): value for name, value in rows.items() if name.startswith("state/")},
            [self._hypers[member] for member in members],
            {name: value[index] for name, value in self.history.items()},
            self.epochs[index],
            [self.REASONS[code] for code in self.stopped[index]],
            self._working_set,
        )
