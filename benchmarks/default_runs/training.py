"""One training loop for all methods: the same batches, the same cosine schedule, the same seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Generator, nn

import bayesadam as ba
from default_tasks import Data, Task, positions
from default_tasks.task import Part, divide

NOISE_RATE = 0.01
RATES = (3e-4, 1e-3, 3e-3)
"""Learning rates of Adam, of which the best by validation counts."""


@dataclass(frozen=True)
class Plan:
    """What an optimiser may be told.

    Attributes:
        num_data: Data points that are trained on, of which the loss is a mean.
        batch_size: Data points of a step.
        total_steps: Steps of the whole training.
    """

    num_data: int
    batch_size: int
    total_steps: int


@dataclass
class Trained:
    """A network, its likelihood and its optimiser at the end; the weights hold the mean.

    Attributes:
        model: In eval mode.
        likelihood: With the noise level that was learned, if any.
        optimizer: What trained the model.
        plan: What the optimiser was told.
        seconds: Processor time of the training: unlike the clock it does not depend on what else runs.
    """

    model: nn.Module
    likelihood: ba.likelihoods.Likelihood
    optimizer: Any
    plan: Plan
    seconds: float

    def posterior(self) -> ba.DiagonalGaussian:
        """Of the network's weights."""
        return self.optimizer.posterior(self.model)


Make = Callable[[nn.Module, Plan], torch.optim.Optimizer]


def plan_of(task: Task, data: Data) -> Plan:
    """Of a training of the task."""
    count, each = len(data.train[0]), positions(task, data)
    steps = math.ceil(count / task.batch_size) * task.epochs
    return Plan(count * each, min(count, task.batch_size) * each, steps)


def adam(task: Task, rate: float) -> Make:
    """Adam, or AdamW where it is usual, with a learning rate."""
    kind = torch.optim.AdamW if task.weight_decay else torch.optim.Adam

    def make(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
        return kind([p for p in model.parameters() if p.requires_grad], lr=rate)

    return make


def untouched(prior: ba.DiagonalGaussian | None = None) -> Make:
    """BayesAdam with its defaults, told nothing but what is planned; from ``prior`` it continues."""

    def make(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
        return ba.BayesAdam(model.named_parameters(), **asdict(plan), prior=prior)

    return make


@dataclass(frozen=True)
class Epoch:
    """The state of a training after an epoch, while the weights hold the mean.

    Attributes:
        number: Epochs that have been made, from 1.
        total: Epochs of the training.
        trained: The network, in eval mode, its likelihood and its optimiser, whose ``param_groups`` may be changed.
        train: The rows that are trained on.
        held_out: Training rows that are not trained on; none if no share was asked for.
    """

    number: int
    total: int
    trained: Trained
    train: Part
    held_out: Part

    def loss(self, part: Part) -> float:
        """The mean loss of rows at the present weights."""
        x, y = part
        with torch.no_grad():
            return float(self.trained.likelihood(self.trained.model(x), y))


AfterEpoch = Callable[[Epoch], None]


def train(
    task: Task, data: Data, make: Make, seed: int, *, after_epoch: AfterEpoch | None = None, held_out: float = 0.0
) -> Trained:
    """Train a new network of the task.

    Args:
        task: Says how long, and with what minibatches.
        data: Of the task.
        make: The optimiser.
        seed: Of the initial weights, the order of the examples and their augmentation.
        after_epoch: Called after every epoch.
        held_out: Share of the training rows that are not trained on, for ``after_epoch``; the optimiser is told the
            number of the others.
    """
    torch.manual_seed(seed)
    model, likelihood = task.model(data), task.likelihood()
    x, y = data.train
    aside, rows = divide(len(x), seed, int(held_out * len(x)), -1)
    data = replace(data, train=(x[rows], y[rows])) if len(aside) else data
    plan = plan_of(task, data)

    def hook(trained: Trained, number: int) -> None:
        if after_epoch is not None:
            after_epoch(Epoch(number, task.epochs, trained, data.train, (x[aside], y[aside])))

    optimizer = make(model, plan)
    return fit(task, data, model, likelihood, optimizer, plan, seed, None if after_epoch is None else hook)


def fit(
    task: Task,
    data: Data,
    model: nn.Module,
    likelihood: ba.likelihoods.Likelihood,
    optimizer: Any,
    plan: Plan,
    seed: int,
    after_epoch: Callable[[Trained, int], None] | None = None,
) -> Trained:
    """The loop: drop-in training with a cosine schedule.

    A learned noise level is no part of the comparison: whatever trains the network, Adam trains the noise at a rate
    that lets it follow the residuals.
    """
    x, y = data.train
    level = list(likelihood.parameters())
    follower = torch.optim.Adam(level, lr=NOISE_RATE) if level else None
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.total_steps)
    order, noise = Generator().manual_seed(seed), Generator().manual_seed(seed + 1)
    start = time.process_time()
    _switch(model, optimizer, training=True)
    for epoch in range(1, task.epochs + 1):
        for rows in torch.randperm(len(x), generator=order).split(task.batch_size):
            inputs = x[rows] if task.augment is None else task.augment(x[rows], noise)
            optimizer.zero_grad()
            likelihood.zero_grad()
            likelihood(model(inputs), y[rows]).backward()
            optimizer.step()
            schedule.step()
            if follower is not None:
                follower.step()
        if after_epoch is not None:
            _switch(model, optimizer, training=False)
            after_epoch(Trained(model, likelihood, optimizer, plan, time.process_time() - start), epoch)
            _switch(model, optimizer, training=True)
    _switch(model, optimizer, training=False)
    return Trained(model, likelihood, optimizer, plan, time.process_time() - start)


def _switch(model: nn.Module, optimizer: Any, *, training: bool) -> None:
    """The modes of the network and of an optimiser that has them; without training the weights hold the mean."""
    model.train(training)
    if hasattr(optimizer, "train"):
        optimizer.train(training)
