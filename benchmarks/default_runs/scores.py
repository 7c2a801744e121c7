"""Scores of predictive distributions, and temperature scaling."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

import bayesadam as ba
from default_runs.training import Trained
from default_tasks import Data

SAMPLES = 32


def predict(trained: Trained, x: Tensor, *, posterior: bool) -> Any:
    """By 32 posterior samples, or at the weights as they are; with the running statistics of batch norm."""
    if posterior:
        q, how = trained.posterior(), {"mc_samples": SAMPLES, "batch_size": 500}
        return ba.predict(trained.model, q, x, likelihood=trained.likelihood, batch_norm=None, **how)
    q = ba.DiagonalGaussian.point_mass(trained.model)
    return ba.predict(trained.model, q, x, likelihood=trained.likelihood, method="mean", batch_size=500)


def predict_all(trained: Trained, data: Data, *, posterior: bool) -> dict[str, Any]:
    """Of validation, test and outside inputs."""
    inputs = {"validation": data.validation[0], "test": data.test[0], "outside": data.outside}
    return {part: predict(trained, x, posterior=posterior) for part, x in inputs.items() if x is not None}


def score(found: dict[str, Any], data: Data) -> dict[str, float]:
    """``nll`` per data point in nats; ``accuracy`` and ``ece``, or ``rmse``; ``auroc`` if there are outside inputs.

    What tells outside inputs is the entropy of the predicted class, its mean over the positions of a sequence, or the
    standard deviation of the predicted target.
    """
    prediction, target = found["test"], data.test[1]
    scores = {"nll": ba.metrics.nll(prediction, target)}
    if isinstance(prediction, ba.predictive.ClassificationPredictive):
        probs = prediction.class_probs.flatten(0, -2)
        scores["accuracy"] = ba.metrics.accuracy(probs, target.flatten())
        scores["ece"] = ba.metrics.expected_calibration_error(probs, target.flatten())
    else:
        scores["rmse"] = ba.metrics.rmse(prediction.mean, target)
    if "outside" in found:
        scores["auroc"] = ba.metrics.ood_auroc(_uncertainty(prediction), _uncertainty(found["outside"]))
    return scores


def validation_nll(found: dict[str, Any], data: Data) -> float:
    """What rates are chosen by; infinite where it is not a number."""
    value = ba.metrics.nll(found["validation"], data.validation[1])
    return value if math.isfinite(value) else math.inf


def together(members: list[dict[str, Any]]) -> dict[str, Any]:
    """The equal mixture of several networks' predictions."""

    def mixed(parts: list[Any]) -> Any:
        if isinstance(parts[0], ba.predictive.ClassificationPredictive):
            return ba.predictive.ClassificationPredictive(torch.cat([part.log_probs for part in parts]))
        return ba.predictive.RegressionPredictive(
            torch.cat([part.means for part in parts]), torch.cat([part.variances for part in parts])
        )

    return {part: mixed([member[part] for member in members]) for part in members[0]}


def collapsed(found: dict[str, Any]) -> dict[str, Any]:
    """The predictions of several samples as one: the mean of the probabilities, or a Gaussian of the same moments."""

    def one(prediction: Any) -> Any:
        if isinstance(prediction, ba.predictive.RegressionPredictive):
            return ba.predictive.RegressionPredictive(prediction.mean.unsqueeze(0), prediction.variance.unsqueeze(0))
        return ba.predictive.ClassificationPredictive(prediction.class_probs.clamp_min(1e-30).log().unsqueeze(0))

    return {part: one(prediction) for part, prediction in found.items()}


def temperature(prediction: Any, target: Tensor) -> float:
    """That by which logits (of one network) are best divided, or standard deviations multiplied, for these targets."""
    if isinstance(prediction, ba.predictive.RegressionPredictive):
        return float(((target - prediction.mean).double().square() / prediction.variances[0]).mean().sqrt())
    logits, classes = prediction.log_probs[0].double().flatten(0, -2), target.flatten()

    def nll(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits / math.exp(log_temperature), classes))

    found = minimize_scalar(nll, bounds=(math.log(0.05), math.log(20.0)), method="bounded")
    return math.exp(found.x)


def scaled(found: dict[str, Any], factor: float) -> dict[str, Any]:
    """Predictions with this temperature."""

    def one(prediction: Any) -> Any:
        if isinstance(prediction, ba.predictive.RegressionPredictive):
            return ba.predictive.RegressionPredictive(prediction.means, prediction.variances * factor**2)
        return ba.predictive.ClassificationPredictive((prediction.log_probs / factor).log_softmax(-1))

    return {part: one(prediction) for part, prediction in found.items()}


def _uncertainty(prediction: Any) -> Tensor:
    """One number per example."""
    value = (
        prediction.entropy
        if isinstance(prediction, ba.predictive.ClassificationPredictive)
        else prediction.variance.sqrt()
    )
    return value.flatten(1).mean(1) if value.ndim > 1 else value
