"""What a task of ``defaults.py`` is: data of a seed, a network, a likelihood, and how long it is trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

import bayesadam as ba

Part = tuple[Tensor, Tensor]
"""Inputs and targets."""
Augment = Callable[[Tensor, Generator], Tensor]


@dataclass(frozen=True, eq=False)
class Data:
    """Three parts that share no example, and inputs from elsewhere.

    Attributes:
        train: What is trained on.
        validation: Chooses Adam's rate and fits its temperature.
        test: What scores are of.
        outside: Inputs that are not of the training distribution, or None if there are no sensible ones.
    """

    train: Part
    validation: Part
    test: Part
    outside: Tensor | None = None


@dataclass(frozen=True)
class Task:
    """One row of the benchmark.

    Attributes:
        name: In tables and file names.
        data: From a seed and a number of training examples (None: all there are).
        model: A new network for these data, from torch's global generator.
        likelihood: Training loss (a mean over data points) and predictive distribution.
        batch_size: Examples per step.
        epochs: Passes over the training part.
        size: Number of training examples, validation not counted; None for all.
        seeds: How many runs; 5 where a training takes less than 20 seconds, else 3.
        outside: What the outside inputs are.
        augment: Changes a minibatch of training inputs, with noise from a generator.
        weight_decay: Adam is ``torch.optim.AdamW``, as is usual for transformers.
    """

    name: str
    data: Callable[[int, int | None], Data]
    model: Callable[[Data], nn.Module]
    likelihood: Callable[[], ba.likelihoods.Likelihood]
    batch_size: int
    epochs: int
    size: int | None = None
    seeds: int = 5
    outside: str = "none"
    augment: Augment | None = None
    weight_decay: bool = False

    def load(self, seed: int) -> Data:
        """The data of a seed."""
        return self.data(seed, self.size)


def positions(task: Task, data: Data) -> int:
    """How many data points, over which the loss is a mean, one example has: the tokens of a sequence, else 1."""
    target = data.train[1]
    return math.prod(target.shape[1:]) if task.likelihood().defines("log_probs") else 1


def divide(count: int, seed: int, *sizes: int) -> list[Tensor]:
    """Row numbers of random parts of the given sizes, which share none; a size of -1 takes all that remain."""
    order = torch.randperm(count, generator=Generator().manual_seed(seed))
    parts, start = [], 0
    for size in sizes:
        end = count if size < 0 else start + size
        parts.append(order[start:end])
        start = end
    return parts


def divided(x: Tensor, y: Tensor, seed: int, *sizes: int) -> list[Part]:
    """The examples of such parts."""
    return [(x[rows], y[rows]) for rows in divide(len(x), seed, *sizes)]
