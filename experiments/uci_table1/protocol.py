"""The published protocol: splits, folds, networks, scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.model_selection import KFold
from torch import Tensor, nn

import bayesadam as ba
from bayesadam import population
from bayesadam.data import Standardizer
from bayesadam.predictive.result import Predictive

Pair = tuple[Tensor, Tensor]
OnEpoch = Callable[[int, list[int], population.Population], None]


@dataclass(frozen=True)
class Part:
    """A training and a held-out part, standardised by the training part.

    Attributes:
        train: Standardised inputs ``(n, d)`` and targets ``(n, 1)``.
        x: Standardised held-out inputs.
        y: Held-out targets in original units, ``(m, 1)``.
        scaler: Standardisation of the targets.
    """

    train: Pair
    x: Tensor
    y: Tensor
    scaler: Standardizer

    @classmethod
    def of(cls, train: Pair, test: Pair) -> Part:
        """Standardise raw tensors."""
        inputs, targets = Standardizer.fit(train[0]), Standardizer.fit(train[1])
        x, y = inputs.transform(train[0].double()).float(), targets.transform(train[1].double()).float()
        return cls((x, y), inputs.transform(test[0].double()).float(), test[1], targets)


@dataclass(frozen=True)
class Precisions:
    """Tuned parameters: natural logarithms of the noise precision, in standardised units, and prior precision."""

    log_noise: float
    log_prior: float


def splits(name: str, count: int) -> list[Part]:
    """Load the published splits."""
    found = []
    for split in range(count):
        data = ba.data.load(f"uci/{name}", split=split)
        found.append(Part.of((data.x_train, data.y_train), (data.x_test, data.y_test)))
    return found


def folds(name: str, count: int, parts: int, seed: int) -> list[list[Part]]:
    """Divide the training part of every split into training and validation rows in ``parts`` ways."""
    found = []
    for split in range(count):
        data = ba.data.load(f"uci/{name}", split=split)
        x, y = data.x_train, data.y_train
        divide = KFold(parts, shuffle=True, random_state=seed).split(np.arange(len(x)))
        found.append([Part.of((x[a], y[a]), (x[b], y[b])) for a, b in divide])
    return found


def fit(
    parts: Sequence[Part],
    candidates: Sequence[Precisions],
    seeds: Sequence[int],
    config: dict[str, Any],
    on_epoch: OnEpoch | None = None,
) -> population.Population:
    """Train one network per part and candidate.

    Args:
        parts: Parts, of which the training rows are used.
        candidates: One candidate per part.
        seeds: Seeds of weights, noise and order, one per part.
        config: hidden, method, epochs, batch_size, lr, betas, mc_samples. The precision of the posterior starts at that
            of the prior, or at ``initial_precision``, or at that of the prior plus ``initial_hessian`` for every data
            point.
        on_epoch: Function that is called after every epoch, as in :func:`bayesadam.population.train`.
    """
    prior = [math.exp(candidate.log_prior) for candidate in candidates]
    hessian, start = config.get("initial_hessian", 0.0), config.get("initial_precision")
    return population.train(
        population.initialize(lambda: network(parts[0], config["hidden"]), seeds=seeds),
        [part.train for part in parts],
        likelihood=[ba.Gaussian(math.exp(candidate.log_noise)) for candidate in candidates],
        method=config["method"],
        epochs=config["epochs"],
        batch_size=config["batch_size"],
        seed=list(seeds),
        lr=config["lr"],
        betas=tuple(config["betas"]),
        mc_samples=config["mc_samples"],
        prior_precision=prior,
        initial_precision=[
            own + hessian * len(part.train[0]) if start is None else start
            for own, part in zip(prior, parts, strict=True)
        ],
        nonfinite="skip",
        progress=False,
        on_epoch=on_epoch,
    )


def network(part: Part, hidden: int) -> nn.Sequential:
    """Create a network with one hidden layer of ReLU. Weights and biases are uniform in +-1/sqrt(fan_in)."""
    return nn.Sequential(nn.Linear(part.x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 1))


def scores(nets: population.Population, parts: Sequence[Part], samples: int, seed: int) -> dict[str, list[float]]:
    """Return the test scores of every member; see :func:`score`."""
    predictions = nets.predict([part.x for part in parts], mc_samples=samples, seed=seed)
    return together([score(prediction, part) for prediction, part in zip(predictions, parts, strict=True)])


def score(prediction: Predictive, part: Part) -> dict[str, float]:
    """Return the RMSE of the mean, and the mean log-likelihood, pointwise and joint, in original units.

    The joint log-likelihood is left out if the predictive distribution does not describe the dependence between data
    points.
    """
    assert isinstance(prediction, ba.predictive.RegressionPredictive)
    scaled = prediction.rescale(part.scaler.mean, part.scaler.std)
    found = {
        "rmse": float((scaled.mean - part.y).double().square().mean().sqrt()),
        "log_likelihood": float(scaled.log_prob(part.y).double().mean()),
    }
    if not isinstance(scaled, ba.predictive.GaussianPredictive):
        found["joint_log_likelihood"] = float(scaled.joint_log_likelihood(part.y)) / len(part.y)
    return found


def together(found: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Return lists by metric, from the metrics of every member."""
    return {metric: [own[metric] for own in found] for metric in found[0]}
