"""Regression on tables: the published 90/10 splits of UCI sets, a Gaussian whose noise is learned."""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, nn

import bayesadam as ba
from default_tasks.task import Data, Task, divide
from networks import perceptron
from public_data import load


def table(seed: int, size: int | None, *, name: str) -> Data:
    """Split ``seed``, standardised: a fifth of its training part validates. Outside rows are test rows, moved by three
    standard deviations of every feature, up or down.
    """
    found = load(name, split=seed, standardize=True)
    count = len(found.x_train)
    validation, train = divide(count, seed, count // 5, -1)
    train = train[:size]
    signs = torch.randint(0, 2, found.x_test.shape, generator=Generator().manual_seed(seed)) * 2 - 1
    return Data(
        (found.x_train[train], found.y_train[train]),
        (found.x_train[validation], found.y_train[validation]),
        (found.x_test, found.y_test),
        found.x_test + 3.0 * signs,
    )


def network(data: Data) -> nn.Module:
    """Two hidden layers of 50."""
    return perceptron(data.train[0].shape[1], 50, 50, data.train[1].shape[1])


def uci(name: str, epochs: int, size: int | None = None) -> Task:
    """A set of the usual benchmark; NLL and RMSE are in standardised units."""
    data = partial(table, name=f"uci/{name}")
    return Task(f"uci-{name}", data, network, epochs, size, partial(ba.Gaussian, 1.0, learned=True))


TASKS = [uci("concrete", 100), uci("energy", 150), uci("kin8nm", 20, size=3_000)]
