"""Scores of every model on the held-out rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from bayesadam import metrics
from bayesadam.predictive import GaussianPredictive
from bayesadam.runs.held_out import Arrays

Scores = dict[str, float | None]


def scores(held_out: Arrays, seconds: float) -> Scores:
    """Return the scores of predictions from :func:`bayesadam.runs.held_out.predict_held_out`.

    The NLL is in nats, RMSE and CRPS are in the units of the target.

    Args:
        held_out: Predictions and targets.
        seconds: Duration of the fit.
    """
    found: Mapping[str, float]
    tensors = {name: torch.from_numpy(values) for name, values in held_out.items()}
    nll = float(held_out["nll"].mean())
    if "probs" in held_out:
        labels, probs = tensors["label"].long(), tensors["probs"]
        found = {
            "NLL": nll,
            "accuracy": metrics.accuracy(probs, labels),
            "ECE": metrics.expected_calibration_error(probs, labels),
            "Brier": metrics.brier_score(probs, labels),
        }
    else:
        y, mean = tensors["y"], tensors["mean"]
        found = {
            "NLL": nll,
            "RMSE": metrics.rmse(mean, y),
            "CRPS": float(held_out["crps"].mean()),
            "coverage 95%": metrics.coverage(tensors["lower"], tensors["upper"], y),
        }
    numbers = {**found, "fit seconds": seconds}
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def margin(ours: Arrays, other: Arrays) -> list[float] | None:
    """Return the NLL of another model minus ours on the same rows, and the standard error of the difference.

    The result is ``None`` for a single row, or if a number is not finite.
    """
    above = other["nll"] - ours["nll"]
    if len(above) < 2 or not np.isfinite(above).all():
        return None
    return [float(above.mean()), float(above.std(ddof=1) / math.sqrt(len(above)))]


def gaussian(y: NDArray[np.float64], mean: NDArray[np.float64], std: float) -> Arrays:
    """Return the predictions of a model with one standard deviation for all rows."""
    z = (y - mean) / std
    return {
        "y": y,
        "mean": mean,
        "std": np.full_like(mean, std),
        "lower": mean - 1.959963984540054 * std,
        "upper": mean + 1.959963984540054 * std,
        "nll": 0.5 * z**2 + math.log(std) + 0.5 * math.log(2.0 * math.pi),
        "crps": metrics.predictive_crps(_gaussian(mean, std), torch.from_numpy(y)).numpy(),
    }


def _gaussian(mean: NDArray[np.float64], std: float) -> GaussianPredictive:
    center = torch.from_numpy(mean)
    return GaussianPredictive(center, torch.zeros_like(center), torch.full_like(center, std**2))


def categorical(label: NDArray[np.int64], probs: NDArray[np.float64]) -> Arrays:
    """Return the predictions of a model that predicts probabilities."""
    chosen = np.maximum(probs[np.arange(len(label)), label], np.finfo(np.float64).tiny)
    return {"label": label.astype(np.float64), "probs": probs, "nll": -np.log(chosen)}
