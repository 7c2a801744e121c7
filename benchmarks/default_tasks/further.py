"""Six tasks that were written down before a rule was searched, and that are run once, when it has been chosen.

Nothing may be chosen by them: ``defaults.py`` refuses to train on them without ``--final``.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

import bayesadam as ba
from default_tasks.images import convolutional
from default_tasks.made_up import GAUSSIAN, task
from default_tasks.ratings import Recommender
from default_tasks.task import Data, Part, Task, divide, divided
from networks import Transformer, perceptron
from public_data import load

WORDS, LEVELS = 16, 60


def handwriting(seed: int, size: int | None) -> Data:
    """Images of USPS, ``(n, 1, 16, 16)``; test images are of its own test part."""
    found = load("usps")
    x, x_test = (part.float().view(-1, 1, 16, 16) for part in (found.x_train, found.x_test))
    train, validation = divided(x, found.y_train, seed, size or 2_000, 1_000)
    return Data(train, validation, (x_test, found.y_test))


def power(seed: int, size: int | None) -> Data:
    """Split ``seed`` of the power plant's published ones; a noise level that depends on the inputs is learned."""
    found = load("uci/power", split=seed, standardize=True)
    train, validation = divide(len(found.x_train), seed, size or 2_000, 1_000)
    parts = [(found.x_train[rows], found.y_train[rows]) for rows in (train, validation)]
    return Data(*parts, (found.x_test, found.y_test))


def marked(count: int, generator: Generator) -> Part:
    """Series of 24 numbers, of which two are marked: is their sum positive?"""
    values = torch.randn(count, 24, generator=generator)
    places = torch.rand(count, 24, generator=generator).argsort(1)[:, :2]
    marks = torch.zeros(count, 24).scatter(1, places, 2.0)
    return torch.stack([values, marks], -1), (values.gather(1, places).sum(1) > 0).long()


class Recurrent(nn.Module):
    """A GRU, whose last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(2, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Series ``(N, T, 2)`` to logits ``(N, 2)``."""
        return self.head(self.gru(x)[0][:, -1])


def rare(count: int, generator: Generator) -> Part:
    """About one row of 25 is of class 1; it lies in a ring of two of the ten features."""
    x = torch.randn(count, 10, generator=generator)
    radius = x[:, :2].square().sum(1).sqrt()
    logits = 2.0 - 12.0 * (radius - 2.5).abs() + x[:, 2] - 2.0
    return x, torch.bernoulli((0.9 * logits.sigmoid() + 0.01), generator=generator).long()


def looked_up(count: int, generator: Generator) -> Part:
    """Pairs of a key and a value, in one token each, and a key: what is its value? A tenth is random."""
    keys = torch.rand(count, WORDS, generator=generator).argsort(1)[:, :6]
    values = torch.randint(4, keys.shape, generator=generator)
    asked = torch.randint(6, (count, 1), generator=generator)
    y = values.gather(1, asked).squeeze(1)
    wrong = torch.rand(count, generator=generator) < 0.1
    y = torch.where(wrong, torch.randint(4, y.shape, generator=generator), y)
    return torch.cat([4 * keys + values, 4 * WORDS + keys.gather(1, asked)], 1), y


class Attentive(Transformer):
    """Two blocks of attention; what is predicted at the last token is the value."""

    def __init__(self) -> None:
        super().__init__(5 * WORDS, width=32, depth=2, length=7)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``(N, T)`` to logits ``(N, 4)``, of the last token."""
        return super().forward(x)[:, -1, :4]


def categories(count: int, generator: Generator) -> Part:
    """Two columns of 60 levels, most of which are rare; every level has an effect of its own."""
    effects = torch.randn(2, LEVELS, generator=Generator().manual_seed(12))
    x = (LEVELS * torch.rand(count, 2, generator=generator).square()).long()
    y = effects[torch.arange(2), x].sum(1, keepdim=True) / 2**0.5
    return x, y + 0.5 * torch.randn(y.shape, generator=generator)


TASKS = [
    Task("usps", handwriting, convolutional, epochs=12, size=2_000),
    Task("power-plant", power, lambda data: perceptron(4, 50, 50, 2), 40, 2_000, ba.HeteroscedasticGaussian),
    task("marked-series", marked, lambda data: Recurrent(), epochs=25, size=2_000),
    task("rare-class", rare, lambda data: perceptron(10, 64, 64, 2), epochs=25, size=2_000),
    task("look-up", looked_up, lambda data: Attentive(), epochs=25, size=3_000, weight_decay=True),
    task("levels", categories, lambda data: Recommender(LEVELS, LEVELS), epochs=40, size=1_500, likelihood=GAUSSIAN),
]
