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
from bayesadam.tables.estimators.clock import Clock

FEWEST, LOOKS_APART = 10, 1.3
"""Number of epochs after each of which the members predict the rows that they leave out, and the ratio between two
later epochs after which they do. Early stopping chooses among the epochs from the tenth on."""

PATIENCE = 3.0
"""Ratio of the number of epochs to that of the best epoch after which the training ends. On 25 tables it finds the
epochs that 8 would find; 2 and 2.5 find earlier and worse ones on some of them."""


PROBE = 0.05
"""Share of the time that is spent on measuring, and on looks whose only purpose is to show the progress."""


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
        clock: The time for the training, which limits the number of epochs.
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
        shortened: How much of the training the clock leaves out, in words, if there are not more than ten epochs.
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
    clock: Clock
    sample_weight: Sequence[Tensor] | None = None
    error: Callable[[Sequence[Predictive]], float] | None = None
    on_epoch: Callable[[TrainingStatus], None] | None = None
    offset: float = 0.0
    verbose: bool = False
    stopped: str = field(default="end", init=False)
    best: int = field(default=0, init=False)
    shortened: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._chosen: Population | None = None
        self._least, self._next_look = math.inf, 1
        self._steps: dict[str, Any] = {}
        self._held_out_nll: float | None = None
        self._begin = 0.0

    def run(self) -> Population:
        """Train the members. If Ctrl-C or the time budget ends the training, return the best members so far, or those
        of the last complete epoch if ``error`` is ``None``.

        Raises:
            KeyboardInterrupt: The user interrupted the first epoch, so that there is nothing to keep.
        """
        self._begin = time.monotonic()
        if self.clock.limited:
            self._fit_into_time()
        self.held_out_nll = torch.full((len(self.models), self.epochs), math.nan, dtype=torch.float64)
        try:
            self._train(self.epochs, self._after_epoch)
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
    def steps_per_epoch(self) -> int:
        """Number of steps per epoch. Members with slightly fewer rows may take one step less."""
        if "steps_per_epoch" in self._steps:
            return int(self._steps["steps_per_epoch"])
        return max(math.ceil(len(x) / self.batch_size) for x, _ in self.data)

    def _train(self, epochs: int, on_epoch: Any) -> None:
        population.train(
            self.models,
            self.data,
            likelihood=self.likelihoods,
            method=self.method,
            epochs=epochs,
            batch_size=self.batch_size,
            seed=self.seed,
            lr_schedule=cosine,
            on_epoch=on_epoch,
            chunk=len(self.models),
            progress=self.verbose,
            sample_weight=self.sample_weight,
            **self._steps,
            options=self.options,
        )

    def _fit_into_time(self) -> None:
        """Choose the number of epochs by the time of a few steps and of a look at the rows left out. If it is too short
        for ten passes over the rows, an epoch does not visit all rows.
        """
        shown, self.verbose = self.verbose, False
        each = look = 0.0
        probed: list[tuple[float, Population]] = []
        for steps in sorted({1, min(8, self.steps_per_epoch)}):
            if each and 24 * each > PROBE * self.clock.left:
                break
            probed.clear()
            self._steps = {"steps_per_epoch": steps}
            self._train(3, lambda _, members, nets: probed.append((time.monotonic(), in_order(nets, members))))
            each = (probed[-1][0] - probed[0][0]) / (2 * steps)
        if self.held_out:
            begin = time.monotonic()
            self._scored(probed[-1][1])
            look = time.monotonic() - begin
        self._steps, self.verbose = {}, shown
        left, steps, wanted = 0.9 * self.clock.left, self.steps_per_epoch, self.epochs * self.steps_per_epoch
        if FEWEST * look > PROBE * left:
            self._next_look = FEWEST

        def looks(epochs: float) -> float:
            return FEWEST + 1 - self._next_look + math.log(max(epochs / FEWEST, 1.0), LOOKS_APART)

        if wanted * each + looks(self.epochs) * look <= left:
            return
        possible = int((left - looks(left / (steps * each)) * look) / each)
        possible = max(possible, min(FEWEST, int(1.0 / each)), 1)  # at least as many of ten as take a second
        self.epochs = min(self.epochs, max(min(possible, FEWEST), possible // steps))
        if possible < self.epochs * steps:
            self._steps = {"steps_per_epoch": max(1, possible // self.epochs)}
        if self.epochs <= FEWEST:
            self.shortened = f"all but {self.epochs * self.steps_per_epoch:,} of {wanted:,} training steps"

    def _after_epoch(self, epoch: int, members: list[int], nets: Population) -> None:
        nets = in_order(nets, members)
        now = time.monotonic()
        last = epoch + 1 == self.epochs
        late = self.clock.left < 0.0
        self.loss = nets.history["loss"]
        if self.error is None or math.isinf(self._least):
            self._chosen, self.best = nets, epoch + 1
        enough = False
        if self.held_out and (last or late or epoch + 1 >= self._next_look):
            self._next_look = epoch + 2 if epoch + 1 < FEWEST else math.ceil((epoch + 1) * LOOKS_APART)
            self._look(epoch, nets)
            enough = self.error is not None and epoch + 1 > PATIENCE * self.best
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
        if epoch + 1 >= FEWEST and error < self._least:
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


def cosine(done: float) -> float:
    """Return the factor of the learning rate: 1 in the first half of the training, then half a cosine down to 0."""
    return half_cosine(done, flat=0.5)
