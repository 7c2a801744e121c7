"""Shared code of the experiments on MNIST: training by all methods that are compared, with the same loop, batches and
schedule, and scores: error, calibration, and detection of images that are not digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import bayesadam as ba
from bayesadam.optim import PerturbedOptimizer, half_cosine
from experiments.framework import Context, save

LIKELIHOOD = ba.Categorical()

Step = Callable[[Tensor, Tensor, float], Tensor]
"""Function that returns the loss of images and labels; the number multiplies the KL divergence, if there is one."""


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
        config: ``method`` ("adam", "bbb", "vadam", "ivon"), ``epochs``, ``batch_size``, ``seed``, ``hidden``;
            ``dropout`` and ``options`` of the method; ``kl``, the schedule of the minibatches' shares of the KL
            divergence (uniform by default), and ``kl_factor``, which multiplies it.
        x: Images ``(n, 784)``.
        y: Labels ``(n,)``.
        context: Context of the unit.

    The learning rate falls to 0 along half a cosine, for all methods. There is a checkpoint after every epoch.
    """
    seed, size = config["seed"], config["batch_size"]
    model = perceptron(seed, config["hidden"], config.get("dropout", 0.0))
    optimizer, module, loss_of, finish = prepare(config, model, len(x))
    each = math.ceil(len(x) / size)
    weights = ba.kl_weights(each, schedule=config.get("kl", "uniform"))
    shares = (config.get("kl_factor", 1.0) * each * weights).tolist()
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
            loss = loss_of(x[rows], y[rows], shares[place - 1])
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            if place % 50 == 0:
                context.progress(epoch + place / each, config["epochs"], f"loss {loss.item():.3f}")
        states = {name: part.state_dict() for name, part in stateful.items()}
        save(path, {**states, "order": order.get_state(), "dropout": torch.get_rng_state(), "epoch": epoch + 1})
    return Trained(model, finish(), optimizer)


def prepare(
    config: Mapping[str, Any], model: nn.Module, num_data: int
) -> tuple[Optimizer, nn.Module, Step, Callable[[], ba.posterior.NetworkDistribution]]:
    """Return the optimiser, the module that holds the state of the training, the loss, and the function that ends the
    training. If a network that is trained by Adam has dropout, predictions use its masks.
    """
    options, method, seed = dict(config["options"]), config["method"], config["seed"]

    def nll(x: Tensor, y: Tensor, kl_weight: float) -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    if method == "adam":
        end = ba.MCDropout if "dropout" in config else ba.DiagonalGaussian.point_mass
        return torch.optim.Adam(model.parameters(), fused=True, **options), model, nll, partial(end, model)
    if method == "bbb":
        lr, (kind, *arguments) = options.pop("lr"), options.pop("prior")
        named = dict(zip(("pi", "sigma1", "sigma2"), arguments, strict=True)) if kind == "ScaleMixture" else {}
        prior = ba.priors.ScaleMixturePrior(**named) if named else ba.priors.GaussianPrior(*arguments)
        net = ba.variational(model, prior=prior, seed=seed, **options)

        def loss(x: Tensor, y: Tensor, kl_weight: float) -> Tensor:
            return net.loss(x, y, likelihood=LIKELIHOOD, num_data=num_data, kl_weight=kl_weight)

        return torch.optim.Adam(net.parameters(), lr=lr, fused=True), net, loss, net.posterior
    if "betas" in options:
        options["betas"] = tuple(options["betas"])
    make: Callable[..., PerturbedOptimizer] = {"vadam": ba.Vadam, "ivon": ba.IVON}[method]
    optimizer = make(model.named_parameters(), num_data=num_data, seed=seed, **options)
    optimizer.attach(model)  # checkpoints hold the mean
    optimizer.train()

    def finish() -> ba.posterior.NetworkDistribution:
        optimizer.eval()
        return optimizer.posterior(model)

    return optimizer, model, nll, finish


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
