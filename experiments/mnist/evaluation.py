"""Scores of a trained network: error, calibration, and detection of images that are not digits."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import bayesadam as ba
from experiments.mnist.training import LIKELIHOOD, Trained


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
