"""The evaluation on held-out rows: predictions of every row, scores, and how models compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesadam import metrics
from bayesadam.predictive import MixturePredictive
from bayesadam.tables.report.predicted import LEVEL, OURS
from bayesadam.tables.report.weighted import mean_and_error
from bayesadam.tables.runs.predict_table import means

CONSTANT = "constant"
"""Name of the baseline that ignores the inputs."""
MOST = 3.0
"""Limit in nats of what a single row counts for or against a constant."""

Arrays = dict[str, NDArray[np.float64]]
Scores = dict[str, float | None]


def predict_held_out(pred: Any, y: NDArray[Any], weight: NDArray[np.float64] | None = None) -> Arrays:
    """Return the values of each row that scores and charts need, by name.

    Args:
        pred: Predictive distribution of the rows.
        y: ``(N,)``, values or indices of classes.
        weight: Weights of the rows, ``(N,)``, which are returned as "weight"; with ``None`` they are equal.

    Returns:
        Regression: "y", "mean", "std", "epistemic_std", "lower", "upper", "pit", "nll", "crps". If a target has a
        probability of its own, as counts do, a random part of it is subtracted in "pit" (Czado et al. 2009), which is
        then uniform for a right model.
        Classification: "label", "probs" (``(N, C)``), "entropy", "mutual_information", "nll".
    """
    if hasattr(pred, "probs"):
        values = {
            "label": y,
            "probs": pred.probs,
            "entropy": pred.entropy,
            "mutual_information": pred.mutual_information,
            "nll": -pred.log_prob(torch.as_tensor(y, device=pred.device)),
        }
    else:
        tail = 0.5 * (1.0 - LEVEL)
        target = torch.as_tensor(y, dtype=pred.mean.dtype, device=pred.device)
        lower, upper = pred.quantile([tail, 1.0 - tail])
        nll, below = -pred.log_prob(target), pred.cdf(target)
        discrete = isinstance(pred, MixturePredictive) and pred.likelihood.discrete
        # Quantiles are limited for targets that are never negative: 0 then has the probability of what is below it.
        mass = (-nll).exp() if discrete else below.where(target == lower, 0.0)
        part = torch.rand(len(y), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        values = {
            "y": y,
            "mean": means(pred),
            "std": pred.variance.sqrt(),
            "epistemic_std": pred.epistemic.sqrt(),
            "lower": lower,
            "upper": upper,
            "pit": below - mass * part.to(pred.device),
            "nll": nll,
            "crps": metrics.predictive_crps(pred, target),
        }
    if weight is not None:
        values["weight"] = weight
    return {name: np.asarray(torch.as_tensor(value).detach().cpu(), dtype=np.float64) for name, value in values.items()}


def scores(held_out: Arrays, seconds: float) -> Scores:
    """Return the scores of predictions from :func:`predict_held_out`.

    The NLL is in nats, RMSE and CRPS are in the units of the target. Rows count by their weights.

    Args:
        held_out: Predictions and targets.
        seconds: Duration of the fit.
    """
    weight = held_out.get("weight")

    def mean(numbers: Any) -> float:
        return float(np.average(numbers, weights=weight))

    values: dict[str, float] = {"NLL": mean(held_out["nll"])}
    if "probs" in held_out:
        labels, probs = held_out["label"].astype(np.int64), held_out["probs"]
        rows = torch.from_numpy(probs), torch.from_numpy(labels)
        values["accuracy"] = mean(probs.argmax(1) == labels)
        values["ECE"] = metrics.expected_calibration_error(
            *rows, weight=None if weight is None else torch.from_numpy(weight)
        )
        values["Brier"] = mean(((probs - np.eye(probs.shape[1])[labels]) ** 2).sum(1))
    else:
        y = held_out["y"]
        with np.errstate(invalid="ignore"):
            values["RMSE"] = math.sqrt(mean((held_out["mean"] - y) ** 2))
        values["CRPS"] = mean(held_out["crps"])
        values["coverage 95%"] = mean((held_out["lower"] <= y) & (y <= held_out["upper"]))
    values["fit seconds"] = seconds
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def worse_than_constant(scored: Mapping[str, Scores]) -> bool:
    """Whether the RMSE of any model is not below that of the constant."""
    errors = {name: values["RMSE"] for name, values in scored.items()}
    constant = errors.pop(CONSTANT, None)
    return constant is not None and any(error is not None and error >= constant for error in errors.values())


def margin(ours: Arrays, other: Arrays, most: float = math.inf) -> list[float] | None:
    """Return the NLL of another model minus ours on the same rows, and the standard error of the difference.

    The result is ``None`` for a single row, or if a number is not finite.

    Args:
        ours: Our predictions.
        other: Predictions of the other model.
        most: Limit of the difference of a row.
    """
    above = np.clip(other["nll"] - ours["nll"], -most, most)
    if len(above) < 2 or not np.isfinite(above).all():
        return None
    return list(mean_and_error(above, ours.get("weight")))


def compared(ours: Arrays, others: Mapping[str, Arrays]) -> dict[str, dict[str, Any]]:
    """Return "margins" of the other models but the constant, by :func:`margin`, and "gains": those of the constant over
    every model, which are positive if the model is better.

    In the gains a row counts for ``MOST`` nats at most: with a constant, a single unlikely target can cost as much as
    all other rows gain, and the mean difference is then within its standard error.
    """
    if CONSTANT not in others:
        return {"margins": {}, "gains": {}}
    models = {OURS: ours, **{name: rows for name, rows in others.items() if name != CONSTANT}}
    return {
        "margins": {name: margin(ours, rows) for name, rows in models.items() if name != OURS},
        "gains": {name: margin(rows, others[CONSTANT], MOST) for name, rows in models.items()},
    }
