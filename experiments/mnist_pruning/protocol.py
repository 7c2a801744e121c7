"""Training and pruning of a network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

import bayesadam as ba
from experiments.experiment import Progress
from experiments.mnist.training import LIKELIHOOD, Trained, train


def curves(config: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Return test scores of the mean network at every level of pruning, by the ranking of the weights."""
    data = ba.data.load("mnist")
    trained = train(config, data.x_train[: config["train"]], data.y_train[: config["train"]], progress)
    found = {}
    for name in config["curves"]:
        curve = _CURVES[name](trained, config, data.x_test, data.y_test)
        found[name] = {"fractions": curve.fractions, **curve.scores}
    return {"curves": found}


def _posterior(trained: Trained, config: Mapping[str, Any], x: Tensor, y: Tensor) -> ba.pruning.PruningCurve:
    assert isinstance(trained.distribution, ba.DiagonalGaussian)
    return _by_deviation(trained, trained.distribution, x, y)


def _badam(trained: Trained, config: Mapping[str, Any], x: Tensor, y: Tensor) -> ba.pruning.PruningCurve:
    # Dead pixels have a second moment of 0: without a prior the variance is infinite. The order is the same.
    posterior = ba.badam(trained.optimizer, trained.model, num_data=config["train"], prior_precision=1e-6)
    return _by_deviation(trained, posterior, x, y)


def _magnitude(trained: Trained, config: Mapping[str, Any], x: Tensor, y: Tensor) -> ba.pruning.PruningCurve:
    point = ba.DiagonalGaussian.point_mass(trained.model)
    return ba.pruning_curve(trained.model, point, x, y, likelihood=LIKELIHOOD, by="magnitude", progress=False)


def _mc_dropout(trained: Trained, config: Mapping[str, Any], x: Tensor, y: Tensor) -> ba.pruning.PruningCurve:
    """Prune by magnitude, and average the predictions over dropout masks."""
    model, masks = trained.model, ba.MCDropout(trained.model)
    predict = partial(ba.predict, model, masks, x, likelihood=LIKELIHOOD, mc_samples=config["mc_samples"])

    def evaluate(pruned: ba.posterior.NetworkDistribution) -> Mapping[str, float]:
        with pruned.applied(model):
            found = predict(progress=False)
        assert isinstance(found, ba.predictive.ClassificationPredictive)
        return {"accuracy": ba.metrics.accuracy(found.probs, y), "nll": ba.metrics.nll(found, y)}

    point = ba.DiagonalGaussian.point_mass(model)
    return ba.pruning_curve(model, point, evaluate=evaluate, by="magnitude", progress=False)


def _by_deviation(trained: Trained, posterior: ba.DiagonalGaussian, x: Tensor, y: Tensor) -> ba.pruning.PruningCurve:
    return ba.pruning_curve(trained.model, posterior, x, y, likelihood=LIKELIHOOD, progress=False)


_CURVES = {"posterior": _posterior, "badam": _badam, "magnitude": _magnitude, "mc-dropout": _mc_dropout}
