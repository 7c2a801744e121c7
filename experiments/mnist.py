"""Shared code of the experiments on MNIST: training by all methods that are compared, with the same loop, batches and
schedule, and scores: error, calibration, and detection of images that are not digits.
"""

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
from bayesadam.optim import PerturbedOptimizer, half_cosine
from experiments.framework import Context, save

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


def train(config: Mapping[str, Any], x: Tensor, y: Tensor, context: Context) -> Trained:
    """Train one network, or resume its training from the checkpoint in the unit's folder.

    Args:
        config: ``method`` (see :data:`METHODS`), ``epochs``, ``batch_size``, ``seed``, ``hidden``; ``dropout`` and
            ``options`` of the method.
        x: Images ``(n, 784)``.
        y: Labels ``(n,)``.
        context: Context of the unit.

    The learning rate falls to 0 along half a cosine, for all methods. There is a checkpoint after every epoch.
    """
    seed, size = config["seed"], config["batch_size"]
    model = perceptron(seed, config["hidden"], config.get("dropout", 0.0))
    optimizer, module, step, finish = METHODS[config["method"]](model, len(x), seed, dict(config["options"]))
    each = math.ceil(len(x) / size)
    schedule = LambdaLR(optimizer, lambda done: half_cosine(min(done / each / config["epochs"], 1.0)))
    order, path, first = torch.Generator().manual_seed(seed), context.folder / "training.pt", 0
    stateful: dict[str, Any] = {"module": module, "optimizer": optimizer, "schedule": schedule}
    if path.is_file():
        saved = torch.load(path)
        for name, part in stateful.items():
            part.load_state_dict(saved[name])
        if isinstance(optimizer, PerturbedOptimizer):
            optimizer.train()
        order.set_state(saved["order"])
        torch.set_rng_state(saved["dropout"])
        first = saved["epoch"]
    for epoch in range(first, config["epochs"]):
        for place, rows in enumerate(torch.split(torch.randperm(len(x), generator=order), size), 1):
            optimizer.zero_grad()
            loss = step(x[rows], y[rows])
            optimizer.step()
            schedule.step()
            if place % 50 == 0:
                context.progress(epoch + place / each, config["epochs"], f"loss {loss.item():.3f}")
        states = {name: part.state_dict() for name, part in stateful.items()}
        save(path, {**states, "order": order.get_state(), "dropout": torch.get_rng_state(), "epoch": epoch + 1})
    return Trained(model, finish(), optimizer)


def nll(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean negative log-likelihood. The labels must have been checked."""
    return nn.functional.cross_entropy(model(x), y)


Prepared = tuple[Optimizer, nn.Module, Step, Callable[[], ba.posterior.NetworkDistribution]]
"""The optimiser, the module that holds the state of the training, the step, and the function that ends the training."""


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
        model,
        _backward(model),
        lambda: ba.MCDropout(model) if uncertain else ba.DiagonalGaussian.point_mass(model),
    )


def _perturbed(make: Callable[..., Any]) -> Callable[..., Prepared]:
    def prepare(model: nn.Module, num_data: int, seed: int, options: dict[str, Any]) -> Prepared:
        if "betas" in options:
            options["betas"] = tuple(options["betas"])
        optimizer = make(model.named_parameters(), num_data=num_data, seed=seed, recipe="paper", **options)
        optimizer.attach(model)  # checkpoints hold the mean
        optimizer.train()

        def finish() -> ba.posterior.NetworkDistribution:
            optimizer.eval()
            found: ba.posterior.NetworkDistribution = optimizer.posterior(model)
            return found

        return optimizer, model, _backward(model), finish

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

    return optimizer, net, step, net.posterior


METHODS: Mapping[str, Callable[[nn.Module, int, int, dict[str, Any]], Prepared]] = {
    "adam": _adam,
    "vadam": _perturbed(ba.Vadam),
    "ivon": _perturbed(ba.IVON),
    "bbb": _bbb,
}
"""Training functions, by the name of the method in a unit's config."""


def predictive(trained: Trained, x: Tensor, **options: Any) -> ba.predictive.ClassificationPredictive:
    """Return the prediction for images ``(n, 784)``, in batches, with options of :func:`bayesadam.predict`."""
    found = ba.predict(trained.model, trained.distribution, x, likelihood=LIKELIHOOD, batch_size=1000, **options)
    assert isinstance(found, ba.predictive.ClassificationPredictive)
    return found


def scores(
    found: ba.predictive.ClassificationPredictive,
    y: Tensor,
    outside: ba.predictive.ClassificationPredictive | None = None,
) -> dict[str, float]:
    """Return error in per cent, NLL in nats, ECE with 15 bins, and the AUROC of entropy and of mutual information.

    Args:
        found: Predictive distribution for the images.
        y: Labels ``(n,)``.
        outside: Predictive distribution for images that are not digits.
    """
    result = {
        "error": 100.0 * (1.0 - ba.metrics.accuracy(found.probs, y)),
        "nll": ba.metrics.nll(found, y),
        "ece": ba.metrics.expected_calibration_error(found.probs, y),
    }
    if outside is not None:
        result["auroc"] = ba.metrics.ood_auroc(found.entropy, outside.entropy)
        if len(found.log_probs) > 1:
            result["auroc_mutual_information"] = ba.metrics.ood_auroc(
                found.mutual_information, outside.mutual_information
            )
    return result
