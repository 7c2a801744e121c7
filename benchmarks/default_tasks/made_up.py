"""Made-up data: several noisy labels a row, noisy waveforms, counts, 120 rows, graphs.

Every seed has rows of its own; what makes the targets of the rows is the same for all seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

import bayesadam as ba
from default_tasks.task import Data, Part, Task, divided
from networks import perceptron

VALIDATION, TEST = 1_000, 3_000
LENGTH = 48
FREQUENCIES = (2.0, 3.0, 4.5, 6.0, 8.0)
NODES = 12
GAUSSIAN = partial(ba.Gaussian, 1.0, learned=True)
Rows = Callable[[int, Generator], Part]
"""So many examples, from a generator."""


def made_up(seed: int, size: int | None, *, rows: Rows) -> Data:
    """So many training examples, 1,000 to validate and 3,000 to test."""
    if size is None:
        raise ValueError("size must be a number for data that are made up, got None")
    x, y = rows(size + VALIDATION + TEST, Generator().manual_seed(seed))
    return Data(*divided(x, y, seed, size, VALIDATION, TEST))


def labels(count: int, generator: Generator) -> Part:
    """Eight labels of 30 features, each with a probability that is seldom near 0 or 1."""
    weights, waves = torch.randn(2, 30, 8, generator=Generator().manual_seed(11)) / 30**0.5
    x = torch.randn(count, 30, generator=generator)
    logits = 1.5 * (1.6 * x @ weights + 0.8 * torch.sin(2.0 * x @ waves) - 0.6)
    return x, torch.bernoulli(logits.sigmoid(), generator=generator)


def waveforms(count: int, generator: Generator) -> Part:
    """Sines of five frequencies and any phase, under noise that is larger than they are."""
    y = torch.randint(len(FREQUENCIES), (count,), generator=generator)
    angles = 2.0 * torch.pi * torch.tensor(FREQUENCIES)[y].unsqueeze(1) * torch.linspace(0.0, 1.0, LENGTH)
    phases = 2.0 * torch.pi * torch.rand(count, 1, generator=generator)
    return torch.sin(angles + phases) + 2.2 * torch.randn(count, LENGTH, generator=generator), y


def listener(data: Data) -> nn.Module:
    """Two convolutions along the series, and a perceptron."""
    first = [nn.Conv1d(1, 16, 7, padding=3), nn.ReLU(), nn.MaxPool1d(2)]
    second = [nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten()]
    head = perceptron(32 * LENGTH // 4, 64, len(FREQUENCIES))
    return nn.Sequential(nn.Unflatten(1, (1, LENGTH)), *first, *second, *head)


def counts(count: int, generator: Generator) -> Part:
    """Poisson counts with a mean of about 2 that depends on four of eight features."""
    x = torch.randn(count, 8, generator=generator)
    log_rate = 0.3 + 0.5 * x[:, 0] - 0.4 * x[:, 1] * x[:, 2] + 0.5 * torch.sin(2.0 * x[:, 3])
    return x, torch.poisson(log_rate.clamp_max(3.0).exp(), generator=generator).unsqueeze(1)


def curve(count: int, generator: Generator) -> Part:
    """A smooth function of four features and noise of a third of its standard deviation."""
    x = 2.0 * torch.rand(count, 4, generator=generator) - 1.0
    y = torch.sin(3.0 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    return x, y + 0.25 * torch.randn(y.shape, generator=generator)


def graphs(count: int, generator: Generator) -> Part:
    """Adjacency matrix and three noisy features of 12 nodes, ``(n, 12, 15)``; class 1 has edges mostly between nodes
    that are alike in the first feature.
    """
    y = torch.randint(2, (count,), generator=generator)
    kind = torch.randint(2, (count, NODES, 1), generator=generator)
    alike = (kind == kind.transpose(1, 2)).float()
    share = 0.3 + 0.15 * y.view(-1, 1, 1) * (2.0 * alike - 1.0)
    upper = torch.bernoulli(share, generator=generator).triu(1)
    signal = torch.cat([2.0 * kind - 1.0, torch.zeros(count, NODES, 2)], -1)
    features = signal + 0.7 * torch.randn(signal.shape, generator=generator)
    return torch.cat([upper + upper.transpose(1, 2), features], -1), y


class GraphNetwork(nn.Module):
    """Two rounds in which every node hears its neighbours; the mean of all nodes is classified."""

    def __init__(self, features: int, classes: int, width: int = 32) -> None:
        super().__init__()
        widths = ((features, width), (width, width))
        self.own = nn.ModuleList(nn.Linear(*pair) for pair in widths)
        self.heard = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in widths)
        self.head = perceptron(width, width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Graphs ``(N, nodes, nodes + features)`` to logits ``(N, classes)``."""
        nodes = x.shape[1]
        edges, states = x[..., :nodes], x[..., nodes:]
        for own, heard in zip(self.own, self.heard, strict=True):
            states = torch.relu(own(states) + edges @ heard(states) / 3.0)
        return self.head(states.mean(1))


def task(name: str, rows: Rows, model: Callable[[Data], nn.Module], epochs: int, size: int, **how: Any) -> Task:
    """A task of made-up rows."""
    return Task(name, partial(made_up, rows=rows), model, epochs, size, **how)


TASKS = [
    task("eight-labels", labels, lambda data: perceptron(30, 64, 64, 8), 25, 1_200, likelihood=ba.Bernoulli),
    task("waveforms", waveforms, listener, epochs=10, size=2_000),
    task("counts", counts, lambda data: perceptron(8, 64, 64, 1), 25, 1_200, likelihood=ba.likelihoods.Poisson),
    task("120-rows", curve, lambda data: perceptron(4, 50, 50, 1), 150, 120, likelihood=GAUSSIAN, batch_size=16),
    task("graphs", graphs, lambda data: GraphNetwork(3, 2), epochs=25, size=1_500),
]
