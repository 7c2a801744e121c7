"""What moment propagation costs: a training iteration and a prediction beside the deterministic network's.

    python benchmarks/moments.py          # prints the tables, writes runs/benchmarks/moments.json

The network is 784-400-400-10, minibatches have 128 rows. "textbook" is FAWN written down from the paper's formulae for
autograd, softplus standard deviations and all; "monte carlo" is ``predict`` with 64 samples. Medians of rounds in which
all take turns; ratios are medians of the rounds' ratios. The products alone cost 2.43 (training) and 2.34 (prediction).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import bayesadam as ba
from record import arguments, clock, conditions, save

BATCH, NUM_DATA, ROUNDS, REPEATS = 128, 60_000, 15, 10
X = torch.randn(BATCH, 784, generator=torch.Generator().manual_seed(1))
Y = torch.randn(BATCH, 10, generator=torch.Generator().manual_seed(2))
LABELS = torch.arange(BATCH) % 10


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [(784, 400), (400, 400), (400, 10)]
    return nn.Sequential(*[m for i, o in layers for m in (nn.Linear(i, o), nn.ReLU())][:-1])


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


def training() -> dict[str, Callable[[], Any]]:
    def iteration(parameters: Any, loss: Callable[[], Tensor]) -> Callable[[], None]:
        optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=True)

        def run() -> None:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

        return run

    plain, classes = network(), network()
    nets = {name: ba.fawn(network()) for name in ("ropd", "vi", "classes", "compiled")}
    full, book = ba.fawn(network(), covariance=True), Textbook()
    likelihood = ba.Gaussian(torch.full((10,), 11.0), learned=True)
    noise = torch.nn.Parameter(torch.zeros(10))

    def fawn(net: ba.moments.MomentModule, loss: Callable[..., Tensor] | None = None, **options: Any) -> Any:
        loss = loss or net.loss
        parameters = [*net.parameters(), *likelihood.parameters()]
        return iteration(parameters, lambda: loss(X, Y, likelihood=likelihood, num_data=NUM_DATA, **options))

    def textbook() -> Tensor:
        mean, variance = book(X)
        total = variance + noise.exp()
        fit = 0.5 * ((Y - mean).square() / total + total.log()).sum(-1).mean()
        return fit + book.kl_divergence() / NUM_DATA

    return {
        "deterministic": iteration(plain.parameters(), lambda: functional.mse_loss(plain(X), Y)),
        "fawn, ropd": fawn(nets["ropd"]),
        "fawn, ropd, compiled": fawn(nets["compiled"], torch.compile(nets["compiled"].loss)),
        "fawn, vi": fawn(nets["vi"], objective="vi"),
        "co-fawn": fawn(full),
        "textbook, ropd": iteration([*book.parameters(), noise], textbook),
        "deterministic, classes": iteration(classes.parameters(), lambda: functional.cross_entropy(classes(X), LABELS)),
        "fawn, classes": iteration(
            nets["classes"].parameters(),
            lambda: nets["classes"].loss(X, LABELS, likelihood=ba.Categorical(), num_data=NUM_DATA),
        ),
    }


def convolutions(batch: int) -> dict[str, Callable[[], Any]]:
    """Training iterations of a network with two convolutions and max pooling."""

    def make() -> nn.Sequential:
        layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1)]
        return nn.Sequential(*layers, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1568, 10))

    plain, moments = make(), ba.fawn(make())
    x, y = torch.randn(batch, 1, 28, 28), torch.arange(batch) % 10
    losses: dict[nn.Module, Callable[[], Tensor]] = {
        plain: lambda: functional.cross_entropy(plain(x), y),
        moments: lambda: moments.loss(x, y, likelihood=ba.Categorical(), num_data=NUM_DATA),
    }

    def iteration(net: nn.Module) -> Callable[[], None]:
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)

        def run() -> None:
            optimizer.zero_grad()
            losses[net]().backward()
            optimizer.step()

        return run

    return {"deterministic": iteration(plain), "fawn": iteration(moments)}


def prediction() -> dict[str, Callable[[], Any]]:
    net = network()
    posterior = ba.fawn(net).posterior()
    module, book = ba.fawn(network()), Textbook()
    compiled = torch.compile(module)
    regression, classes = ba.Gaussian(11.0), ba.Categorical()
    x = X.repeat(8, 1)

    def predict(likelihood: Any, **options: Any) -> Callable[[], Any]:
        return lambda: ba.predict(net, posterior, x, likelihood=likelihood, **options)

    @torch.no_grad()
    def plain() -> Tensor:
        return net(x)

    @torch.no_grad()
    def propagated() -> Any:
        return module(x)

    @torch.no_grad()
    def fused() -> Any:
        return compiled(x)

    @torch.no_grad()
    def textbook() -> Any:
        return book(x)

    return {
        "deterministic": plain,
        "the module of fawn": propagated,
        "the module, compiled": fused,
        "predict, moments": predict(regression, method="moments"),
        "predict, classes, probit": predict(classes, method="moments", link="probit"),
        "predict, classes": predict(classes, method="moments"),
        "predict, mean": predict(regression, method="mean"),
        "textbook": textbook,
        "predict, monte carlo": predict(regression, mc_samples=64),
    }


def measured(functions: dict[str, Callable[[], Any]]) -> dict[str, dict[str, float]]:
    """Milliseconds, and times of the first function."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(ROUNDS + 1):
        for name, function in functions.items():
            function()
            repeats = 1 if "monte carlo" in name else REPEATS
            begin = clock()
            for _ in range(repeats):
                function()
            if round_:
                seconds[name].append((clock() - begin) / repeats)
    first = next(iter(functions))
    found = {}
    for name, values in seconds.items():
        ratio = statistics.median(v / r for v, r in zip(values, seconds[first], strict=True))
        found[name] = {"milliseconds": round(1e3 * statistics.median(values), 2), "ratio": round(ratio, 2)}
        print(f"  {name:26}{found[name]['milliseconds']:10.2f} ms{found[name]['ratio']:8.2f}")
    return found


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
        report[title] = measured(functions)
    save(options.output / "moments.json", report)


if __name__ == "__main__":
    main()
