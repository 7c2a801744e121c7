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
        train: What is trained on, and all that a rule for the noise may see.
        validation: What everything is chosen by: Adam's rate, and the rule of the noise.
        test: Read once, when everything is chosen.
        outside: Inputs that are not of the training distribution, or None if there are no sensible ones; read with the
            test part.
    """

    train: Part
    validation: Part
    test: Part
    outside: Tensor | None = None

    def training(self) -> Data:
        """The training part alone; the others are empty."""
        x, y = self.train
        return Data(self.train, (x[:0], y[:0]), (x[:0], y[:0]))


@dataclass(frozen=True)
class Task:
    """One row of the benchmark.

    Attributes:
        name: In tables and file names.
        data: From a seed and a number of training examples (None: all there are).
        model: A new network for these data, from torch's global generator.
        epochs: Passes over the training part.
        size: Number of training examples, validation not counted; None for all.
        likelihood: Training loss (a mean over data points) and predictive distribution.
        batch_size: Examples per step.
        augment: Changes a minibatch of training inputs, with noise from a generator.
        weight_decay: Adam is ``torch.optim.AdamW``, as is usual for transformers.
    """

    name: str
    data: Callable[[int, int | None], Data]
    model: Callable[[Data], nn.Module]
    epochs: int
    size: int | None = None
    likelihood: Callable[[], ba.likelihoods.Likelihood] = ba.Categorical
    batch_size: int = 32
    augment: Augment | None = None
    weight_decay: bool = False

    def load(self, seed: int) -> Data:
        """The data of a seed."""
        return self.data(seed, self.size)


def positions(task: Task, data: Data) -> int:
    """How many data points, over which the loss is a mean, one example has: the tokens of a sequence, else 1."""
    return math.prod(data.train[1].shape[1:]) if isinstance(task.likelihood(), ba.Categorical) else 1


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
