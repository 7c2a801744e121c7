"""Scores of predictive distributions as scikit-learn's scorers: ``scorer(estimator, X, y)``, higher is better.

They are given to ``cross_val_score`` and ``GridSearchCV`` as ``scoring=neg_nll``. The estimator is a
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


def neg_nll(estimator: Any, X: ArrayLike, y: ArrayLike) -> float:
    """Mean log predictive density of the targets, in nats per row and in the units of the targets.

    Several targets of a row are taken together: their log densities are summed.

    Args:
        estimator: Fitted.
        X: ``(N, D)``.
        y: ``(N,)`` or ``(N, K)``.

    Raises:
        ValueError: An estimator without a predictive distribution of numbers.
    """
    pred, target = _predictive(estimator, X, y)
    return metrics.log_likelihood(pred, target)


def neg_crps(estimator: Any, X: ArrayLike, y: ArrayLike) -> float:
    """The negative continuous ranked probability score, mean over rows and targets, in the units of the targets.

    Gneiting and Raftery (2007), eq. 20. Arguments and errors are those of :func:`neg_nll`.
    """
    pred, target = _predictive(estimator, X, y)
    return -float(metrics.predictive_crps(pred, target).mean())


def interval_score(estimator: Any, X: ArrayLike, y: ArrayLike, *, coverage: float = 0.95) -> float:
    """The negative interval score of central intervals, mean over rows and targets, in the units of the targets.

    The interval score is the width, plus ``2 / (1 - coverage)`` times the distance of a target outside from the
    interval (Gneiting and Raftery 2007, eq. 43); it is negated because scikit-learn maximises.
    ``functools.partial(interval_score, coverage=0.5)`` is a scorer for another coverage.

    Args:
        estimator: Fitted; :class:`bayesadam.sklearn.TransformedTargetRegressor` is one, too.
        X: ``(N, D)``.
        y: ``(N,)`` or ``(N, K)``.
        coverage: Of the intervals, in (0, 1).

    Raises:
        ValueError: An estimator without intervals, or a coverage out of range.
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
    return pred, torch.tensor(np.asarray(y, dtype=np.float64), dtype=pred.mean.dtype, device=pred.device)


def _last(estimator: Any, X: Any) -> tuple[Any, Any]:
    """The estimator that predicts, and its inputs."""
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif isinstance(estimator, Pipeline):
            estimator, X = estimator[-1], estimator[:-1].transform(X) if len(estimator) > 1 else X
        else:
            return estimator, X
