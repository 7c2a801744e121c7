"""What moment propagation costs: a training iteration and a prediction beside the deterministic network's.

    python benchmarks/moments.py          # prints the tables, writes runs/benchmarks/moments.json

The network is 784-400-400-10, minibatches have 128 rows. "textbook" is FAWN written down from the paper's formulae for
autograd, softplus standard deviations and all; "monte carlo" is ``predict`` with 64 samples. The products alone
cost 2.43 (training) and 2.34 (prediction).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import bayesadam as ba
from contenders import Step, iteration_of_adam
from networks import perceptron
from record import arguments, conditions, save
from turns import take_turns

BATCH, NUM_DATA, ROUNDS, REPEATS = 128, 60_000, 15, 3
X = torch.randn(BATCH, 784, generator=torch.Generator().manual_seed(1))
Y = torch.randn(BATCH, 10, generator=torch.Generator().manual_seed(2))
network = partial(perceptron, 784, 400, 400, 10, seed=0)


class Textbook(nn.Module):
    """Mean and variance by the formulae, second moments and all, and the gradient by autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.rho = nn.ParameterList(torch.full_like(p, -3.0) for p in self.net.parameters())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs."""
        mean, variance = x, torch.zeros_like(x)
        stds = [functional.softplus(rho) for rho in self.rho]
        for number, layer in enumerate(m for m in self.net if isinstance(m, nn.Linear)):
            weight, bias = (std.square() for std in stds[2 * number : 2 * number + 2])
            if number:
                std = variance.sqrt()
                ratio = mean / std
                below = 0.5 * torch.erfc(-ratio / math.sqrt(2.0))
                bell = std * torch.exp(-0.5 * ratio.square()) / math.sqrt(2.0 * math.pi)
                first = mean * below + bell
                mean, variance = first, ((mean.square() + variance) * below + mean * bell - first.square()).clamp_min(0)
            variance = functional.linear(mean.square() + variance, weight, bias) + functional.linear(
                variance, layer.weight.square()
            )
            mean = layer(mean)
        return mean, variance

    def kl_divergence(self) -> Tensor:
        """From the best Gaussian for all weights."""
        means = torch.cat([p.flatten() for p in self.net.parameters()])
        stds = torch.cat([functional.softplus(p).flatten() for p in self.rho])
        spread = (stds.square() + (means - means.mean()).square()).mean()
        return 0.5 * means.numel() * spread.log() - stds.log().sum()


def training() -> dict[str, Step]:
    plain, net, twin, book = network(), ba.fawn(network()), ba.fawn(network()), Textbook()
    likelihood = ba.Gaussian(torch.full((10,), 11.0), learned=True)
    noise = torch.nn.Parameter(torch.zeros(10))

    def fawn(net: ba.moments.MomentModule, loss: Callable[..., Tensor]) -> Step:
        parameters = [*net.parameters(), *likelihood.parameters()]
        return iteration_of_adam(parameters, lambda: loss(X, Y, likelihood=likelihood, num_data=NUM_DATA).backward())

    def textbook() -> None:
        mean, variance = book(X)
        total = variance + noise.exp()
        fit = 0.5 * ((Y - mean).square() / total + total.log()).sum(-1).mean()
        (fit + book.kl_divergence() / NUM_DATA).backward()

    return {
        "deterministic": iteration_of_adam(plain.parameters(), lambda: functional.mse_loss(plain(X), Y).backward()),
        "fawn, ropd": fawn(net, net.loss),
        "fawn, ropd, compiled": fawn(twin, torch.compile(twin.loss)),
        "textbook, ropd": iteration_of_adam([*book.parameters(), noise], textbook),
    }


def convolutions(batch: int) -> dict[str, Step]:
    """Training iterations of a network with two convolutions and max pooling."""

    def make() -> nn.Sequential:
        layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1)]
        return nn.Sequential(*layers, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1568, 10))

    plain, moments = make(), ba.fawn(make())
    x, y = torch.randn(batch, 1, 28, 28), torch.arange(batch) % 10
    return {
        "deterministic": iteration_of_adam(
            plain.parameters(), lambda: functional.cross_entropy(plain(x), y).backward()
        ),
        "fawn": iteration_of_adam(
            moments.parameters(), lambda: moments.loss(x, y, likelihood=ba.Categorical(), num_data=NUM_DATA).backward()
        ),
    }


def prediction() -> dict[str, Step]:
    net = network()
    posterior = ba.fawn(net).posterior()
    module = ba.fawn(network())
    x = X.repeat(8, 1)

    def predict(**options: Any) -> Step:
        return lambda: ba.predict(net, posterior, x, likelihood=ba.Gaussian(11.0), **options)

    def forward(module: Callable[[Tensor], Any]) -> Step:
        return torch.no_grad()(lambda: module(x))

    return {
        "deterministic": forward(net),
        "the module of fawn": forward(module),
        "the module, compiled": forward(torch.compile(module)),
        "predict, moments": predict(method="moments"),
        "predict, monte carlo": predict(mc_samples=64),
    }


def main() -> None:
    options = arguments(__doc__).parse_args()
    report: dict[str, Any] = conditions("torch", "bayesadam")
    for title, functions in (
        ("training iteration", training()),
        ("prediction of 1,024 rows", prediction()),
        ("training iteration, convolutions and max pooling, batch 32", convolutions(32)),
        ("training iteration, convolutions and max pooling, batch 128", convolutions(128)),
    ):
        print(title)
        report[title] = take_turns(functions, ROUNDS, repeats=REPEATS)
    save(options.output / "moments.json", report)


if __name__ == "__main__":
    main()
