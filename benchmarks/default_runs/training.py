"""One training loop for all methods: the same batches, the same cosine schedule, the same seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, nn

import bayesadam as ba
from bayesadam.optim.bayesadam import default_temperature
from default_tasks import Data, Task, positions

NOISE_RATE = 0.01
PEER = "ivon-opt"


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
        if isinstance(self.optimizer, ba.optim.PerturbedOptimizer):
            return self.optimizer.posterior(self.model)
        (group,) = self.optimizer.param_groups  # of ivon-opt, whose running Hessian is one vector
        variances = (group["ess"] * (group["hess"] + group["weight_decay"])).reciprocal()
        means = {name: p.detach().clone() for name, p in self.model.named_parameters() if p.requires_grad}
        parts = variances.split([mean.numel() for mean in means.values()])
        return ba.DiagonalGaussian(
            means, {name: part.view_as(mean) for part, (name, mean) in zip(parts, means.items(), strict=True)}
        )


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


def untouched(prior: ba.DiagonalGaussian | None = None, *, factor: float = 1.0) -> Make:
    """BayesAdam with its defaults: it is told nothing but what is planned.

    Args:
        prior: A posterior to continue from.
        factor: Factor of the temperature that it would choose.
    """

    def make(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
        options: dict[str, Any] = asdict(plan)
        if factor != 1.0:
            options["temperature"] = min(1.0, factor * default_temperature(**options))
        return ba.BayesAdam(model.named_parameters(), **options, prior=prior)

    return make


def peer(rate: float) -> Make:
    """IVON by its authors' package, with its defaults."""
    import ivon

    def make(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
        return ivon.IVON([p for p in model.parameters() if p.requires_grad], lr=rate, ess=plan.num_data)

    return make


def train(task: Task, data: Data, make: Make, seed: int) -> Trained:
    """Train a new network of the task.

    Args:
        task: Says how long, and with what minibatches.
        data: Of the task.
        make: The optimiser.
        seed: Of the initial weights, the order of the examples and their augmentation.
    """
    torch.manual_seed(seed)
    model, likelihood = task.model(data), task.likelihood()
    plan = plan_of(task, data)
    return fit(task, data, model, likelihood, make(model, plan), plan, seed)


def fit(
    task: Task,
    data: Data,
    model: nn.Module,
    likelihood: ba.likelihoods.Likelihood,
    optimizer: Any,
    plan: Plan,
    seed: int,
) -> Trained:
    """The loop: drop-in training with a cosine schedule; ivon-opt has blocks.

    A learned noise level is no part of the comparison: whatever trains the network, Adam trains the noise at a rate
    that lets it follow the residuals.
    """
    x, y = data.train
    level = list(likelihood.parameters())
    follower = torch.optim.Adam(level, lr=NOISE_RATE) if level else None
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.total_steps)
    order, noise = Generator().manual_seed(seed), Generator().manual_seed(seed + 1)
    start = time.process_time()
    model.train()
    if hasattr(optimizer, "train"):
        optimizer.train()
    is_peer = type(optimizer).__module__.startswith("ivon")
    block = partial(optimizer.sampled_params, train=True) if is_peer else nullcontext
    for _ in range(task.epochs):
        for rows in torch.randperm(len(x), generator=order).split(task.batch_size):
            inputs = x[rows] if task.augment is None else task.augment(x[rows], noise)
            optimizer.zero_grad()
            likelihood.zero_grad()
            with block():
                likelihood(model(inputs), y[rows]).backward()
            optimizer.step()
            schedule.step()
            if follower is not None:
                follower.step()
    if hasattr(optimizer, "eval"):
        optimizer.eval()
    model.eval()
    return Trained(model, likelihood, optimizer, plan, time.process_time() - start)
