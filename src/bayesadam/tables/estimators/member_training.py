"""The training of all members as one population, with early stopping, a time budget, interruptions and reports."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam import population
from bayesadam.likelihoods import Likelihood
from bayesadam.optim import half_cosine
from bayesadam.population import Pair, Population
from bayesadam.predictive import Predictive

FEWEST, LOOKS_APART = 10, 1.3
"""Number of epochs after each of which the members predict the rows that they leave out, and the ratio between two
later epochs after which they do. Early stopping chooses among the epochs from the tenth on."""

PATIENCE = 3.0
"""Ratio of the number of epochs to that of the best epoch after which the training ends. On 25 tables it finds the
epochs that 8 would find; 2 and 2.5 find earlier and worse ones on some of them."""

RISES = 3
"""Number of looks in a row, each with a larger error than the one before, after which the training also ends, at 2.2
times the best epoch. On 45 tables of at most 500 rows no later epoch within ``PATIENCE`` was better.
"""

SHORT = 100
"""Maximum number of steps of an epoch if the time is limited, since a training ends after an epoch."""


@dataclass(frozen=True)
class TrainingStatus:
    """The state of a training after an epoch.

    Attributes:
        epoch: Number of epochs that are done.
        epochs: Number of epochs of the whole training.
        loss: Mean training loss of the members, in nats per row, for standardised targets.
        held_out_nll: Negative log density of the rows that each member leaves out, under the member's mean weights,
            averaged over the members, for targets in their units. It is computed after the first ten epochs, and then
            at intervals of three tenths of the epochs so far; this is the last value.
        seconds: Seconds since the training began.
    """

    epoch: int
    epochs: int
    loss: float
    held_out_nll: float | None
    seconds: float


class _EnoughError(Exception):
    pass


@dataclass
class Training:
    """A training, and the way in which it ended.

    Args:
        models: One network per member.
        data: Training rows of every member; the same tensors where members share them.
        held_out: Rows that each member leaves out; empty if there are none.
        held_out_weights: Weights of these rows; with ``None`` they are equal.
        likelihoods: One per member.
        method: Method of :func:`bayesadam.population.train`.
        options: Hyper-parameters of the method.
        epochs: Number of epochs.
        batch_size: Number of rows of a minibatch.
        seed: Seed of the minibatches and of the noise.
        time_budget: Duration of the training in seconds; with ``None`` it has all epochs. The learning rate follows the
            time if that passes faster than the epochs. Epochs then have a hundred steps at most.
        sample_weight: Weights of the training rows, one tensor per member; with ``None`` they are equal.
        error: Function that returns the error of the members, given their predictions of the rows that they leave out.
            It is computed at some of the epochs, and the members with the smallest error are kept. With ``None`` those
            of the last epoch are kept.
        on_epoch: Function that is called with a :class:`TrainingStatus` after every epoch.
        offset: Term, in nats, that converts negative log densities of standardised targets to those of the targets.
        verbose: Whether to show a progress bar.

    Attributes:
        stopped: Reason for the end: ``"end"`` (all epochs), ``"early"`` (no improvement), ``"time"`` or
            ``"interrupted"``.
        best: The epoch, counted from 1, whose members are kept.
        loss: Training losses, ``(members, epochs)``; NaN after the end.
        held_out_nll: ``(members, epochs)``; NaN for epochs at which it was not computed.
    """

    models: Sequence[nn.Module]
    data: Sequence[Pair]
    held_out: Sequence[Pair]
    held_out_weights: Sequence[Tensor] | None
    likelihoods: Sequence[Likelihood]
    method: str
    options: Mapping[str, Any]
    epochs: int
    batch_size: int
    seed: int
    time_budget: float | None = None
    sample_weight: Sequence[Tensor] | None = None
    error: Callable[[Sequence[Predictive]], float] | None = None
    on_epoch: Callable[[TrainingStatus], None] | None = None
    offset: float = 0.0
    verbose: bool = False
    stopped: str = field(default="end", init=False)
    best: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._chosen: Population | None = None
        self._least, self._next_look = math.inf, 1
        self._last_error, self._rises = math.inf, 0
        self.steps_per_epoch = max(math.ceil(len(x) / self.batch_size) for x, _ in self.data)
        self._short: int | None = None
        if self.time_budget is not None and self.steps_per_epoch > SHORT:
            self.epochs = math.ceil(self.epochs * self.steps_per_epoch / SHORT)
            self.steps_per_epoch = self._short = SHORT
        self._held_out_nll: float | None = None
        self._begin = 0.0

    def run(self) -> Population:
        """Train the members. If Ctrl-C or the time budget ends the training, return the best members so far, or those
        of the last complete epoch if ``error`` is ``None``.

        Raises:
            KeyboardInterrupt: The user interrupted the first epoch, so that there is nothing to keep.
        """
        self._begin = time.monotonic()
        self.held_out_nll = torch.full((len(self.models), self.epochs), math.nan, dtype=torch.float64)
        try:
            self._train()
        except KeyboardInterrupt:
            if self._chosen is None:
                raise
            self.stopped = "interrupted"
            warnings.warn(
                f"training was interrupted; the members keep their weights after epoch {self.best}",
                UserWarning,
                stacklevel=4,
            )
        except _EnoughError:
            pass
        assert self._chosen is not None
        return self._chosen

    @property
    def _elapsed(self) -> float:
        """Share of the time budget that has passed; 0 without one."""
        return 0.0 if self.time_budget is None else (time.monotonic() - self._begin) / self.time_budget

    def _train(self) -> None:
        population.train(
            self.models,
            self.data,
            likelihood=self.likelihoods,
            method=self.method,
            epochs=self.epochs,
            batch_size=self.batch_size,
            seed=self.seed,
            lr_schedule=lambda done: half_cosine(min(max(done, self._elapsed), 1.0), flat=0.5),
            on_epoch=self._after_epoch,
            chunk=len(self.models),
            progress=self.verbose,
            sample_weight=self.sample_weight,
            steps_per_epoch=self._short,
            options=self.options,
        )

    def _after_epoch(self, epoch: int, members: list[int], nets: Population) -> None:
        nets = in_order(nets, members)
        now = time.monotonic()
        last = epoch + 1 == self.epochs
        late = self._elapsed > 1.0
        self.loss = nets.history["loss"]
        if self.error is None or math.isinf(self._least):
            self._chosen, self.best = nets, epoch + 1
        enough = False
        if self.held_out and (last or late or epoch + 1 >= self._next_look):
            self._next_look = epoch + 2 if epoch + 1 < FEWEST else math.ceil((epoch + 1) * LOOKS_APART)
            self._look(epoch, nets)
            enough = self.error is not None and (epoch + 1 > PATIENCE * self.best or self._rises >= RISES)
        if self.on_epoch is not None:
            loss = float(self.loss[:, epoch].nanmean())
            self.on_epoch(TrainingStatus(epoch + 1, self.epochs, loss, self._held_out_nll, now - self._begin))
        if (enough or late) and not last:
            self.stopped = "early" if enough else "time"
            raise _EnoughError

    def _look(self, epoch: int, nets: Population) -> None:
        """Record the density of the rows left out, and keep the members if they are the best so far."""
        values, error = self._scored(nets)
        self.held_out_nll[:, epoch] = values + self.offset
        self._held_out_nll = float(self.held_out_nll[:, epoch].nanmean())  # with few rows, some members leave out none
        if epoch + 1 < FEWEST:
            return
        self._rises = self._rises + 1 if error > self._last_error else 0
        self._last_error = error
        if error < self._least:
            self._least, self._chosen, self.best = error, nets, epoch + 1

    @torch.no_grad()
    def _scored(self, nets: Population) -> tuple[Tensor, float]:
        """Return the negative log density of the rows that each member leaves out, and the error of all members."""
        predicted = nets.predict([x for x, _ in self.held_out], method="mean")
        weights: Sequence[Tensor | None] = self.held_out_weights or [None] * len(nets)
        parts = zip(predicted, self.held_out, weights, strict=True)
        values = torch.stack([-weighted_mean(pred.log_prob(y).double(), weight) for pred, (_, y), weight in parts])
        return values, math.inf if self.error is None else self.error(predicted)


def in_order(nets: Population, members: Sequence[int]) -> Population:
    """Return the members in their original order; those with more minibatches per epoch are trained first."""
    places = sorted(range(len(members)), key=lambda place: members[place])
    return nets if places == list(range(len(members))) else nets.select(places)


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean over the first axis, weighted by ``weight`` ``(n,)`` unless it is ``None``."""
    return values.mean(0) if weight is None else torch.tensordot(weight, values, 1) / weight.sum()
