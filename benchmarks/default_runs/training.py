"""One training loop for all methods: the same batches, the same cosine schedule, the same seeds."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader

import bayesadam as ba
from default_tasks import Data, Task, positions
from default_tasks.task import Part

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
    """A network that was trained, or several.

    Attributes:
        model: In eval mode; of one network, its weights hold the mean.
        likelihood: With the noise level that was learned, if any.
        posterior: Of the weights; all of it is in one point after a training by Adam.
        seconds: Processor time of the training: unlike the clock it does not depend on what else runs.
    """

    model: nn.Module
    likelihood: ba.likelihoods.Likelihood
    posterior: ba.DiagonalGaussian | ba.Mixture
    seconds: float


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


def train(task: Task, data: Data, make: Make, seed: int) -> Trained:
    """Train a new network of the task; the seed is that of its weights, the order of the examples and augmentation."""
    torch.manual_seed(seed)
    model, plan = task.model(data), plan_of(task, data)
    return fit(task, data, model, task.likelihood(), make(model, plan), plan, seed)


def train_together(task: Task, data: Data, seed: int) -> Trained:
    """Five networks by ``train_ensemble``, with its defaults, as one mixture of posteriors."""
    (x, y), likelihood = data.train, task.likelihood()
    rows: Any = (x, y) if task.augment is None else _augmented(task, x, y, seed)
    model = task.model(data).eval()
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the members of the ensemble are trained in turn")
        q = ba.train_ensemble(
            partial(task.model, data),
            rows,
            likelihood=likelihood,
            epochs=task.epochs,
            batch_size=task.batch_size,
            seed=1_000 * seed,
            progress=False,
        )
    return Trained(model, likelihood, q, time.process_time() - start)


def _augmented(task: Task, x: Tensor, y: Tensor, seed: int) -> DataLoader[Part]:
    """Minibatches in random order, changed as the task says."""
    noise = Generator().manual_seed(seed)

    def batch(rows: list[int]) -> Part:
        return task.augment(x[rows], noise), y[rows]  # type: ignore[misc]

    return DataLoader(range(len(x)), batch_size=task.batch_size, shuffle=True, collate_fn=batch)  # type: ignore[arg-type]


def fit(
    task: Task,
    data: Data,
    model: nn.Module,
    likelihood: ba.likelihoods.Likelihood,
    optimizer: Any,
    plan: Plan,
    seed: int,
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
    for _ in range(task.epochs):
        for rows in torch.randperm(len(x), generator=order).split(task.batch_size):
            inputs = x[rows] if task.augment is None else task.augment(x[rows], noise)
            optimizer.zero_grad()
            likelihood.zero_grad()
            likelihood(model(inputs), y[rows]).backward()
            optimizer.step()
            schedule.step()
            if follower is not None:
                follower.step()
    _switch(model, optimizer, training=False)
    seconds = time.process_time() - start
    if not hasattr(optimizer, "posterior"):
        return Trained(model, likelihood, ba.DiagonalGaussian.point_mass(model), seconds)
    q = optimizer.posterior(model)
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        q = ba.predictive.with_batch_norm(model, q, x)
    return Trained(model, likelihood, q, seconds)


def _switch(model: nn.Module, optimizer: Any, *, training: bool) -> None:
    """The modes of the network and of an optimiser that has them; without training the weights hold the mean."""
    model.train(training)
    if hasattr(optimizer, "train"):
        optimizer.train(training)
