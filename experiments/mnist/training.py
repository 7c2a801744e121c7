"""Training by all methods that are compared, with the same loop, batches and schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import bayesadam as ba
from bayesadam.optim import half_cosine
from experiments.experiment import Progress

LIKELIHOOD = ba.Categorical()

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Trained:
    """A network after training.

    Attributes:
        model: The network, whose weights are the point estimate or the posterior mean.
        distribution: A posterior over the weights, or dropout masks for the units.
        optimizer: The optimiser, whose state is used as well.
    """

    model: nn.Module
    distribution: ba.posterior.NetworkDistribution
    optimizer: Optimizer


def perceptron(seed: int, hidden: int = 400, dropout: float = 0.0) -> nn.Sequential:
    """Create a network of 784 pixels, two hidden layers of ReLU (with dropout, if any), and ten logits."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in ((784, hidden), (hidden, hidden)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(hidden, 10))


def train(config: Mapping[str, Any], x: Tensor, y: Tensor, progress: Progress) -> Trained:
    """Train one network.

    Args:
        config: ``method`` (see :data:`METHODS`), ``epochs``, ``batch_size``, ``seed``, ``hidden``; ``dropout`` and
            ``options`` of the method.
        x: Images ``(n, 784)``.
        y: Labels ``(n,)``.
        progress: Function that is called after every few steps.

    The learning rate falls to 0 along half a cosine, for all methods.
    """
    seed, size = config["seed"], config["batch_size"]
    model = perceptron(seed, config["hidden"], config.get("dropout", 0.0))
    optimizer, step, finish = METHODS[config["method"]](model, len(x), seed, dict(config["options"]))
    steps = config["epochs"] * math.ceil(len(x) / size)
    schedule = LambdaLR(optimizer, lambda done: half_cosine(min(done / steps, 1.0)))
    order, done = torch.Generator().manual_seed(seed), 0
    for _ in range(config["epochs"]):
        for rows in torch.split(torch.randperm(len(x), generator=order), size):
            optimizer.zero_grad()
            loss = step(x[rows], y[rows])
            optimizer.step()
            schedule.step()
            done += 1
            if done % 50 == 0:
                progress(done, steps, f"loss {loss.item():.3f}")
    return Trained(model, finish(), optimizer)


def nll(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean negative log-likelihood. The labels must have been checked."""
    return nn.functional.cross_entropy(model(x), y)


Prepared = tuple[Optimizer, Step, Callable[[], ba.posterior.NetworkDistribution]]


def _backward(model: nn.Module) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = nll(model, x, y)
        torch.autograd.backward(loss)
        return loss

    return step


def _adam(model: nn.Module, num_data: int, seed: int, options: dict[str, Any]) -> Prepared:
    """Train a point estimate. If the network has dropout, predictions use its masks."""
    optimizer = torch.optim.Adam(model.parameters(), fused=True, **options)
    uncertain = any(isinstance(module, nn.Dropout) for module in model.modules())
    return (
        optimizer,
        _backward(model),
        lambda: ba.MCDropout(model) if uncertain else ba.DiagonalGaussian.point_mass(model),
    )


def _perturbed(make: Callable[..., Any]) -> Callable[..., Prepared]:
    def prepare(model: nn.Module, num_data: int, seed: int, options: dict[str, Any]) -> Prepared:
        if "betas" in options:
            options["betas"] = tuple(options["betas"])
        optimizer = make(model.named_parameters(), num_data=num_data, seed=seed, recipe="paper", **options)
        optimizer.train()

        def finish() -> ba.posterior.NetworkDistribution:
            optimizer.eval()
            found: ba.posterior.NetworkDistribution = optimizer.posterior(model)
            return found

        return optimizer, _backward(model), finish

    return prepare


def _bbb(model: nn.Module, num_data: int, seed: int, options: dict[str, Any]) -> Prepared:
    """Train by Bayes by Backprop, with Adam."""
    lr, temperature = options.pop("lr"), options.pop("temperature", 1.0)
    kind, *arguments = options.pop("prior")
    if kind == "ScaleMixture":
        numbers = dict(zip(("pi", "sigma1", "sigma2"), arguments, strict=True))
        prior: ba.priors.Prior = ba.priors.ScaleMixturePrior(**numbers)
    else:
        prior = getattr(ba.priors, f"{kind}Prior")(*arguments)
    net = ba.variational(model, prior=prior, seed=seed, **options)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, fused=True)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = net.loss(x, y, likelihood=LIKELIHOOD, num_data=num_data, temperature=temperature)
        torch.autograd.backward(loss)
        return loss

    return optimizer, step, net.posterior


METHODS: Mapping[str, Callable[[nn.Module, int, int, dict[str, Any]], Prepared]] = {
    "adam": _adam,
    "vadam": _perturbed(ba.Vadam),
    "ivon": _perturbed(ba.IVON),
    "bbb": _bbb,
}
"""Training functions, by the name of the method in a unit's config."""
