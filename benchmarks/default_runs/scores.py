"""Scores of predictive distributions."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import bayesadam as ba
from default_runs.training import Trained
from default_tasks import Data
from default_tasks.task import Part

SAMPLES = 32
WAYS = ("mean", "samples")


def predict(trained: Trained, x: Tensor, *, posterior: bool) -> Any:
    """By 32 posterior samples, or by the mean network; batch norm has the statistics that the posterior keeps."""
    how: dict[str, Any] = {"mc_samples": SAMPLES} if posterior else {"method": "mean"}
    how |= {"likelihood": trained.likelihood, "batch_size": 500, "batch_norm": None}
    return ba.predict(trained.model, trained.posterior, x, **how)


def finite_nll(prediction: Any, target: Tensor) -> float:
    """What is chosen by: the NLL per data point in nats; infinite where it is not a number."""
    value = ba.metrics.nll(prediction, target)
    return value if math.isfinite(value) else math.inf


def mixed_nll(predictions: list[Any], target: Tensor) -> float:
    """That of the equal mixture of several networks."""
    densities = torch.stack([prediction.log_prob(target).double() for prediction in predictions])
    return float(math.log(len(predictions)) - densities.logsumexp(0).mean())


def score(prediction: Any, target: Tensor, outside: Any = None) -> dict[str, float]:
    """``nll`` per data point in nats; ``accuracy``, ``ece`` and ``errors``, the AUROC with which wrong predictions are
    told, for classes; ``rmse`` for numbers; ``auroc`` of telling outside inputs, if there is a prediction of some.

    What tells is the entropy of the predicted class, its mean over the positions of a sequence for outside inputs, or
    the standard deviation of the predicted target.
    """
    scores = {"nll": ba.metrics.nll(prediction, target)}
    if isinstance(prediction, ba.predictive.ClassificationPredictive):
        probs, classes = prediction.class_probs.flatten(0, -2), target.flatten().long()
        scores["accuracy"] = ba.metrics.accuracy(probs, classes)
        scores["ece"] = ba.metrics.expected_calibration_error(probs, classes)
        wrong, unsure = probs.argmax(-1) != classes, prediction.entropy.flatten()
        if wrong.any() and not wrong.all():
            scores["errors"] = ba.metrics.ood_auroc(unsure[~wrong], unsure[wrong])
    else:
        scores["rmse"] = ba.metrics.rmse(prediction.mean, target)
    if outside is not None:
        scores["auroc"] = ba.metrics.ood_auroc(_uncertainty(prediction), _uncertainty(outside))
    return scores


def test_scores(trained: Trained, data: Data, *, posterior: bool) -> dict[str, float]:
    """Of the test part, and ``scaled``, the NLL with a temperature that is fitted on validation, if there is one."""
    outside = None if data.outside is None else predict(trained, data.outside, posterior=posterior)
    scores = score(predict(trained, data.test[0], posterior=posterior), data.test[1], outside)
    scaled = calibrated(trained, data.validation, posterior=posterior)
    if scaled is not None:
        scores["scaled"] = ba.metrics.nll(predict(scaled, data.test[0], posterior=posterior), data.test[1])
    return scores


def calibrated(trained: Trained, part: Part, *, posterior: bool) -> Trained | None:
    """The network with the temperature that is best for these rows; None for a likelihood without one."""
    how: dict[str, Any] = {"mc_samples": SAMPLES} if posterior else {"method": "mean"}
    how |= {"posterior": trained.posterior, "batch_norm": None, "batch_size": 500}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of temperatures below 1
            likelihood = ba.calibrate(trained.model, part, likelihood=trained.likelihood, **how)
    except ba.likelihoods.MissingCapabilityError:
        return None
    return replace(trained, likelihood=likelihood)


def _uncertainty(prediction: Any) -> Tensor:
    """One number per example."""
    value = (
        prediction.entropy
        if isinstance(prediction, ba.predictive.ClassificationPredictive)
        else prediction.variance.sqrt()
    )
    return value.flatten(1).mean(1) if value.ndim > 1 else value
