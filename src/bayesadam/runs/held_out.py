"""Predictions of the held-out rows, chunk by chunk: the values of each row that scores and charts need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesadam.metrics import predictive_crps
from bayesadam.predictive import ClassificationPredictive
from bayesadam.tabular.file import CHUNK_ROWS

COVERAGE = 0.95
Arrays = dict[str, NDArray[np.float64]]


def predict_held_out(estimator: Any, inputs: NDArray[np.float32], targets: NDArray[Any]) -> Arrays:
    """Return one value per row, by name, in the form that the report needs.

    Args:
        estimator: The fitted estimator.
        inputs: ``(N, D)``.
        targets: ``(N,)``, values or indices of classes.

    Returns:
        Regression: "y", "mean", "std", "epistemic_std", "lower", "upper", "pit", "nll", "crps".
        Classification: "label",
        "probs" (``(N, C)``), "entropy", "mutual_information", "nll".
    """
    return collect(lambda rows: values_of(estimator.predictive(inputs[rows]), targets[rows]), len(inputs))


def values_of(found: Any, targets: NDArray[Any]) -> Arrays:
    """Return the values of :func:`predict_held_out` for a predictive distribution and the actual targets."""
    row = _classification if isinstance(found, ClassificationPredictive) else _regression
    return {name: _array(values) for name, values in row(found, targets).items()}


def _regression(found: Any, y: NDArray[Any]) -> dict[str, Any]:
    tail = 0.5 * (1.0 - COVERAGE)
    target = torch.as_tensor(y, dtype=found.mean.dtype, device=found.mean.device)
    lower, upper = found.quantile([tail, 1.0 - tail])
    return {
        "y": y,
        "mean": found.mean,
        "std": found.variance.sqrt(),
        "epistemic_std": found.epistemic.sqrt(),
        "lower": lower,
        "upper": upper,
        "pit": found.cdf(target),
        "nll": -found.log_prob(target),
        "crps": predictive_crps(found, target),
    }


def _classification(found: ClassificationPredictive, y: NDArray[Any]) -> dict[str, Any]:
    return {
        "label": y,
        "probs": found.probs,
        "entropy": found.entropy,
        "mutual_information": found.mutual_information,
        "nll": -found.log_prob(torch.as_tensor(y, device=found.entropy.device)),
    }


def collect(part: Callable[[slice], Arrays], rows: int) -> Arrays:
    """Join the arrays of all chunks."""
    parts = [part(chunk) for chunk in _chunks(rows)]
    return {name: np.concatenate([chunk[name] for chunk in parts]) for name in parts[0]}


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK_ROWS) for start in range(0, rows, CHUNK_ROWS))


def _array(values: Any) -> NDArray[np.float64]:
    return np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values, dtype=np.float64)
