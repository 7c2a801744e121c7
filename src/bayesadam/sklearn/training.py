"""The training of all members as one population, with a time budget, interruptions and status."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam import population
from bayesadam.likelihoods import Likelihood
from bayesadam.population import Objective, Population
from bayesadam.population.batches import Pair

FIRST_LOOK, LOOKS_APART, PATIENCE = 10, 1.3, 8
"""The first epoch after which the error is looked at, the ratio of one such epoch to the next, and how many of them
without a new least error end the training."""

STATUS_EVERY = 0.5
"""Seconds between two looks at the rows left out."""


@dataclass(frozen=True)
class TrainingStatus:
    """What is known after an epoch.

    Attributes:
        epoch: Epochs done.
        epochs: Epochs there will be.
        loss: Mean training loss of the members, in nats per row, of standardised targets.
        held_out_nll: Mean over the members of the negative log density of the rows that each leaves out, with the
            members' means, in the units of the targets; looked at about twice a second, the last one known.
        seconds: Since the training began.
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
    """A training and how it ended.

    Args:
        models: One network per member.
        data: Training rows of every member; the same tensors where members share them.
        held_out: Rows that each leaves out; empty if there are none.
        held_out_weights: Of those rows; ``None``: all alike.
        minimised: One likelihood or objective per member.
        method: Of :func:`bayesadam.population.train`.
        options: Hyper-parameters for it by name, and perhaps its ``sample_weight``.
        epochs: Of it.
        batch_size: Of it.
        seed: Of it.
        time_budget: Seconds; the number of epochs is made such that it fits.
        error: Of the members, by the rows they leave out: training looks at it now and then, and ends with what had
            the least. ``None``: with what was there at the end.
        checkpoint: Folder of it; what had the least error is kept there too, so that going on ends as never stopped.
        on_epoch: Called with a :class:`TrainingStatus` after every epoch.
        offset: What makes a density of standardised targets one of the targets, in nats.
        verbose: Show a progress bar.

    Attributes:
        stopped: What ended it: ``"end"``; ``"early"``, the error was least long ago; ``"time"``; or ``"interrupted"``.
        best: The epoch, from 1, that the members are of.
        loss: ``(members, epochs)``; NaN where it was over.
        held_out_nll: Likewise; NaN where nobody looked.
    """

    models: Sequence[nn.Module]
    data: Sequence[Pair]
    held_out: Sequence[Pair]
    held_out_weights: Sequence[Tensor] | None
    minimised: Sequence[Likelihood] | Sequence[Objective]
    method: str
    options: Mapping[str, Any]
    epochs: int
    batch_size: int
    seed: int
    time_budget: float | None = None
    error: Callable[[Population], float] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    on_epoch: Callable[[TrainingStatus], None] | None = None
    offset: float = 0.0
    verbose: bool = False
    stopped: str = field(default="end", init=False)
    best: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._chosen: Population | None = None
        self._least, self._next = math.inf, FIRST_LOOK
        self._steps: dict[str, Any] = {}
        self._looked = -math.inf
        self._held_out_nll: float | None = None
        self._begin = 0.0

    def run(self) -> Population:
        """Train; on Ctrl-C or at the end of the time the members are what they were after the last epoch.

        Raises:
            KeyboardInterrupt: In the first epoch, when there is nothing to keep.
        """
        self._begin = time.monotonic()
        if self.time_budget is not None:
            self._fit_into(self.time_budget)
        self.held_out_nll = torch.full((len(self.models), self.epochs), math.nan, dtype=torch.float64)
        try:
            folder = None if self.checkpoint is None else Path(self.checkpoint)
            ended = self._train(self.epochs, self._after_epoch, checkpoint=folder, memory=self)
            if self._chosen is None:  # a checkpoint of the end
                self._chosen, self.best, self.loss = ended, self.epochs, ended.history["loss"]
        except KeyboardInterrupt:
            if self._chosen is None:
                raise
            self.stopped = "interrupted"
            warnings.warn("training was interrupted; the members are what they are by now", UserWarning, stacklevel=4)
        except _EnoughError:
            pass
        assert self._chosen is not None
        return self._chosen

    @property
    def steps_per_epoch(self) -> int:
        """Of the members; those with a few rows less may have one less."""
        if "steps_per_epoch" in self._steps:
            return int(self._steps["steps_per_epoch"])
        return max(math.ceil(len(x) / self.batch_size) for x, _ in self.data)

    def _train(self, epochs: int, on_epoch: Any, **options: Any) -> Population:
        kind = "objective" if isinstance(self.minimised[0], Objective) else "likelihood"
        criteria: dict[str, Any] = {kind: self.minimised}
        hyperparameters = {name: value for name, value in self.options.items() if name != "sample_weight"}
        return population.train(
            self.models,
            self.data,
            **criteria,
            method=self.method,
            epochs=epochs,
            batch_size=self.batch_size,
            seed=self.seed,
            lr_schedule=cosine,
            on_epoch=on_epoch,
            chunk=len(self.models),
            progress=self.verbose,
            sample_weight=self.options.get("sample_weight"),
            options=hyperparameters,
            **{**self._steps, **options},
        )

    def _fit_into(self, seconds: float) -> None:
        """Choose the number of epochs by the time of a few steps; epochs shorter than the data if need be."""
        shown, self.verbose = self.verbose, False
        steps = min(8, self.steps_per_epoch)
        self._steps = {"replacement": True, "steps_per_epoch": steps}
        times: list[float] = [time.monotonic()]
        self._train(3, lambda *_: times.append(time.monotonic()))
        self._steps, self.verbose = {}, shown
        each = (times[-1] - times[1]) / (2 * steps)
        left = 0.9 * (seconds - (time.monotonic() - self._begin))
        possible = max(10, int(left / each))
        wanted = self.epochs * self.steps_per_epoch
        if possible >= wanted:
            return
        if possible >= 10 * self.steps_per_epoch:
            self.epochs = possible // self.steps_per_epoch
        else:
            self._steps = {"replacement": True, "steps_per_epoch": max(1, possible // 10)}
            self.epochs = 10

    def tensors(self) -> dict[str, Tensor]:
        """What the next epoch needs to know of those before."""
        kept = {"held_out_nll": self.held_out_nll}
        if self.error is None or self._chosen is None:
            return kept
        numbers = {"least": self._least, "best": float(self.best), "next": float(self._next)}
        kept |= {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
        return kept | {f"chosen/{name}": value for name, value in self._chosen.rows.items()}

    def restore(self, tensors: Mapping[str, Tensor], members: list[int], nets: Population) -> None:
        """Go on with what :meth:`tensors` gave; checkpoints of earlier versions have nothing."""
        nets = in_order(nets, members)
        self.loss = nets.history["loss"]
        if "held_out_nll" in tensors:
            self.held_out_nll = tensors["held_out_nll"].cpu()
        if self.error is None or "least" not in tensors:
            return
        self._least = float(tensors["least"])
        self.best, self._next = (int(tensors[name]) for name in ("best", "next"))
        rows = {name.removeprefix("chosen/"): v for name, v in tensors.items() if name.startswith("chosen/")}
        self._chosen = nets.select(range(len(nets)), rows)

    def _after_epoch(self, epoch: int, members: list[int], nets: Population) -> None:
        nets = in_order(nets, members)
        now = time.monotonic()
        last = epoch + 1 == self.epochs
        late = self.time_budget is not None and now - self._begin > self.time_budget
        self.loss = nets.history["loss"]
        enough = self._choose(epoch + 1, nets, last or late)
        if self.on_epoch is not None:
            if self.held_out and (last or now - self._looked > STATUS_EVERY):
                self._looked = now
                values = held_out_nll(nets, self.held_out, self.held_out_weights) + self.offset
                self.held_out_nll[:, epoch] = values
                self._held_out_nll = float(values.nanmean())  # of a few rows, some members leave out none
            loss = float(self.loss[:, epoch].nanmean())
            self.on_epoch(TrainingStatus(epoch + 1, self.epochs, loss, self._held_out_nll, now - self._begin))
        if (enough or late) and not last:
            self.stopped = "early" if enough else "time"
            raise _EnoughError

    def _choose(self, epoch: int, nets: Population, last: bool) -> bool:
        """Keep the members if they are better than those kept, or nobody has asked; whether the best are long ago."""
        if self.error is None or math.isinf(self._least):
            self._chosen, self.best = nets, epoch
        if self.error is None or (epoch < self._next and not last):
            return False
        self._next = math.ceil(max(epoch * LOOKS_APART, epoch + 1))
        error = self.error(nets)
        if error < self._least:
            self._least, self._chosen, self.best = error, nets, epoch
        return epoch > self.best * LOOKS_APART**PATIENCE


def in_order(nets: Population, members: Sequence[int]) -> Population:
    """Members in the order that they were given in: those with more minibatches per epoch are trained first."""
    places = sorted(range(len(members)), key=lambda place: members[place])
    return nets if places == list(range(len(members))) else nets.select(places)


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean over the first axis; ``weight``: ``(n,)``, ``None``: all alike."""
    return values.mean(0) if weight is None else torch.tensordot(weight, values, 1) / weight.sum()


def cosine(done: float) -> float:
    """The rate in full for the first half of the training, then by half a cosine to 0."""
    return 1.0 if done < 0.5 else 0.5 * (1.0 + math.cos(math.pi * (2.0 * done - 1.0)))


@torch.no_grad()
def held_out_nll(nets: Population, held_out: Sequence[Pair], weights: Sequence[Tensor] | None) -> Tensor:
    """Mean negative log density of every member's own rows, at the members' means, ``(members,)`` float64."""
    if not nets.likelihoods:  # trained by an objective, as FAWN is
        return torch.full((len(nets),), math.nan, dtype=torch.float64)
    predictions = nets.predict([x for x, _ in held_out], method="mean")
    own = [None] * len(nets) if weights is None else weights
    parts = zip(predictions, held_out, own, strict=True)
    return torch.stack([-weighted_mean(pred.log_prob(y).double(), weight) for pred, (_, y), weight in parts])
