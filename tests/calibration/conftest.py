"""Networks that are too sure of new rows: trained on few, to the end."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import bayesadam as ba


class Problem(NamedTuple):
    model: nn.Module
    adam: torch.optim.Adam
    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    likelihood: ba.likelihoods.Likelihood


def trained(outputs, target, likelihood, rows=(80, 300, 1000), steps=150):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(rows), 3, generator=generator)
    y = target(x, generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, outputs))
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    parts = [(a, b) for a, b in zip(x.split(rows), y.split(rows), strict=True)]
    for _ in range(steps):
        adam.zero_grad()
        likelihood.nll(model(parts[0][0]), parts[0][1]).backward()
        adam.step()
    return Problem(model, adam, *parts, likelihood)


@pytest.fixture(scope="package")
def classes():
    """Three classes that overlap."""

    def target(x, generator):
        logits = 2.0 * torch.stack([x[:, 0], x[:, 1], x[:, 0] * x[:, 1]], 1)
        return torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]

    return trained(3, target, ba.Categorical())


@pytest.fixture(scope="package")
def regression():
    """Noise of 0.5, which the likelihood takes for 0.2."""

    def target(x, generator):
        return (x[:, :1] * x[:, 1:2]).sin() + 0.5 * torch.randn(len(x), 1, generator=generator)

    return trained(1, target, ba.Gaussian(25.0))


@pytest.fixture(scope="package")
def posterior(classes):
    """A wide one around the network of the classes."""
    return ba.posthoc.LaplaceApproximation(classes.model, classes.train, likelihood=classes.likelihood).posterior(1.0)
