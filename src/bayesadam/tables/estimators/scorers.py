"""Scorers for scikit-learn: scores of predictive distributions, ``scorer(estimator, X, y)``; higher is better.

Pass them to ``cross_val_score`` and ``GridSearchCV``, for example as ``scoring=neg_nll``. The estimator is a
:class:`bayesadam.sklearn.BayesianMLPRegressor`, or a ``Pipeline`` or a search that ends in one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.pipeline import Pipeline
from torch import Tensor

from bayesadam import metrics
from bayesadam.tables.estimators.threads import rows_of, torch_threads_for


def neg_nll(estimator: Any, X: ArrayLike, y: ArrayLike) -> float:
    """Return the mean log predictive density of the targets, in nats per row, for targets in their units.

    If a row has several targets, their log densities are summed.

    Args:
        estimator: A fitted estimator.
        X: Inputs ``(N, D)``.
        y: Targets ``(N,)`` or ``(N, K)``.

    Raises:
        ValueError: The estimator has no predictive distribution of numbers.
    """
    with torch_threads_for(rows_of(X)):
        return metrics.log_likelihood(*_predictive(estimator, X, y))


def neg_crps(estimator: Any, X: ArrayLike, y: ArrayLike) -> float:
    """Return the negative continuous ranked probability score, averaged over rows and targets, in the targets' units.

    The formula is eq. 20 of Gneiting and Raftery (2007). The arguments and the errors raised are those of
    :func:`neg_nll`.
    """
    with torch_threads_for(rows_of(X)):
        return -float(metrics.predictive_crps(*_predictive(estimator, X, y)).mean())


def interval_score(estimator: Any, X: ArrayLike, y: ArrayLike, *, coverage: float = 0.95) -> float:
    """Return the negative interval score of central intervals, averaged over rows and targets, in the targets' units.

    The interval score is the width of the interval, plus ``2 / (1 - coverage)`` times the distance from the interval if
    the target is outside (Gneiting and Raftery 2007, eq. 43); it is negated because scikit-learn maximises scores.
    ``functools.partial(interval_score, coverage=0.5)`` is a scorer for another coverage.

    Args:
        estimator: A fitted estimator with ``predict_interval``.
        X: Inputs ``(N, D)``.
        y: Targets ``(N,)`` or ``(N, K)``.
        coverage: Probability content of the intervals, in (0, 1).

    Raises:
        ValueError: The estimator has no intervals, or the coverage is out of range.
    """
    last, inputs = _last(estimator, X)
    if not hasattr(last, "predict_interval"):
        raise ValueError(f"estimator must have predict_interval, got {last!r}")
    low, high = np.moveaxis(last.predict_interval(inputs, coverage), -1, 0)
    target = np.asarray(y, dtype=np.float64)
    if target.shape != low.shape:
        raise ValueError(f"y must be of shape {low.shape}, got {target.shape}")
    outside = np.maximum(low - target, 0.0) + np.maximum(target - high, 0.0)
    return -float(np.mean(high - low + 2.0 / (1.0 - coverage) * outside))


def _predictive(estimator: Any, X: ArrayLike, y: ArrayLike) -> tuple[Any, Tensor]:
    last, inputs = _last(estimator, X)
    pred = last.predictive(inputs) if hasattr(last, "predictive") else None
    if pred is None or not hasattr(pred, "quantile"):
        raise ValueError(f"estimator must have a predictive distribution of numbers, got {last!r}")
    return pred, torch.tensor(np.ascontiguousarray(y, dtype=np.float64), dtype=pred.mean.dtype, device=pred.device)


def _last(estimator: Any, X: Any) -> tuple[Any, Any]:
    """Return the last estimator of a pipeline or a search, and its inputs."""
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif isinstance(estimator, Pipeline):
            estimator, X = estimator[-1], estimator[:-1].transform(X) if len(estimator) > 1 else X
        else:
            return estimator, X
