"""The smallest task that the benchmark of defaults can be given."""

import torch
from torch import nn
from torch.nn import functional

from default_tasks.task import Data, Task, divide


def points(seed, size, *, classes=3):
    """Three clouds in four dimensions, of which the outside points are far."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(90) % classes
    x = torch.randn(90, 4, generator=generator) + 2.0 * functional.one_hot(y, 4)
    rows = divide(90, seed, size or 45, 20, 25)
    return Data(*((x[part], y[part]) for part in rows), outside=9.0 + x[:20])


def perceptron(data):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


TINY = Task("tiny", points, perceptron, epochs=4, batch_size=15)
