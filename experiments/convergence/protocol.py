"""Training and testing of all seeds, and a summary of their curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

import bayesadam as ba
from bayesadam import population
from experiments.experiment import Progress

Array = NDArray[np.float64]


def losses(config: Mapping[str, Any], progress: Progress) -> dict[str, Array]:
    """Test losses in bits per point, ``(seeds, evaluations)``: ``"joint"`` over the test set, and ``"pointwise"``.

    Seed ``r`` uses the library's split ``r`` of the data into halves, and its own initial weights, noise and
    minibatches.
    """
    seeds, every = range(config["seeds"]), config["every"]
    splits = [ba.data.load(config["dataset"], split=seed) for seed in seeds]
    inputs = splits[0].x_train.shape[1]
    epochs = config["iterations"] // every
    found = {name: np.full((len(seeds), epochs), np.nan) for name in ("joint", "pointwise")}

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 1))

    def test(epoch: int, members: list[int], nets: population.Population) -> None:
        predictions = nets.predict(
            [splits[member].x_test for member in members], mc_samples=config["evaluation_samples"], seed=epoch
        )
        for member, prediction in zip(members, predictions, strict=True):
            assert isinstance(prediction, ba.predictive.ClassificationPredictive)
            target = splits[member].y_test[:, None]
            found["joint"][member, epoch] = -ba.metrics.joint_log_likelihood(prediction, target) / math.log(2.0)
            found["pointwise"][member, epoch] = ba.metrics.nll(prediction, target) / math.log(2.0)
        progress(epoch + 1, epochs)

    population.train(
        population.initialize(network, seeds=seeds),
        [(split.x_train, split.y_train[:, None]) for split in splits],
        likelihood=ba.Bernoulli(),
        method=config["method"],
        epochs=epochs,
        steps_per_epoch=every,
        batch_size=config["batch_size"],
        replacement=True,
        seed=list(seeds),
        lr=config["lr"],
        betas=tuple(config["betas"]),
        mc_samples=config["mc_samples"],
        prior_precision=config["prior_precision"],
        initial_precision=config["initial_precision"],
        chunk=len(seeds),
        progress=False,
        on_epoch=test,
    )
    return found


def summary(found: Mapping[str, Array], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return median and quantiles over the seeds of every loss, which is smoothed by a running median for each seed.

    One evaluation has few samples and is noisy, most of all the joint loss.
    """
    width = max(1, config["window"] // config["every"])
    result: dict[str, Any] = {"window": width * config["every"]}
    for name, values in found.items():
        smooth = np.stack([np.median(values[:, max(0, i + 1 - width) : i + 1], axis=1) for i in range(values.shape[1])])
        curves = {
            label: [float(f"{value:.4g}") for value in np.quantile(smooth, level, axis=1)]
            for label, level in (("low", 0.1), ("median", 0.5), ("high", 0.9))
        }
        result[name] = {**curves, "seeds_at_end": [float(f"{value:.4g}") for value in smooth[-1]]}
    return result
