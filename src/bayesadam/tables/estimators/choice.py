"""The choice of the transform that describes left-out rows best, by models that are quick to fit.

As Box and Cox (1964) choose a power by the likelihood of a linear model, the choice is made by regressions on random
hidden units, which are drawn like the initial weights of the networks. Their predictions of left-out rows are compared
by the negative log density in the units of the targets. The training of the networks and their random numbers are not
affected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesadam.scaling import column_scales, standardized
from bayesadam.tables.estimators.calibration import SMALLEST
from bayesadam.tables.estimators.linear import PENALTIES
from bayesadam.tables.estimators.rows import numbered
from bayesadam.tables.estimators.target_transform import NAMES, fitted, require

Floats = NDArray[np.float64]

ROWS = 2_000
"""Maximum number of rows that are used for the choice."""

LEAST = 50
"""Minimum number of rows for a choice. With fewer rows, or rows of a single group, targets are not transformed."""

FOLDS = 5
FEATURES = 200

MARGIN = 2.0
"""Number of standard errors of the paired difference by which a transform must beat none."""

MOST = 10.0
"""Largest gain or loss, in nats, with which a row counts for a choice."""

ALIKE = 0.005
"""Largest difference, in nats per row, between choices that are considered equal."""

COMMON = 0.05
"""Largest share of rows with the same target for which quantiles are considered, and largest share of rows at the end
of the targets' range at which a transform may be steep: it describes a pile of rows well and the means badly.
"""

SENTENCES = {
    "log": "the logarithm of the target is modelled",
    "log1p": "the logarithm of 1 + the target is modelled",
    "sqrt": "the square root of the target is modelled",
    "yeo-johnson": "the target is modelled after a power transform (Yeo and Johnson)",
    "quantile": "the target is modelled after a transform that makes its distribution about normal",
    "student_t": "the noise has heavy tails (Student's t)",
    "poisson": "the target is modelled as counts (Poisson)",
    "negative_binomial": "the target is modelled as counts (negative binomial)",
    "log_normal": "the target is modelled as positive (log-normal)",
    "gamma": "the target is modelled as positive (gamma)",
}


def described(estimator: Any) -> str:
    """Return a sentence on a fitted regressor's likelihood and transform, or "" for a Gaussian without transform."""
    name, chosen = estimator.target_transform_, estimator.target_transform == "auto"
    if estimator.likelihood != "gaussian":
        name, chosen = estimator.likelihood, False
    if not isinstance(name, str) or name not in SENTENCES:
        return ""
    why = ", because this describes training rows that were left out better" if chosen else ""
    return f"{SENTENCES[name]}{why}; predictions and intervals are in the target's own units"


def choose(
    inputs: NDArray[Any],
    scales: tuple[Floats, Floats],
    target: Floats,
    weight: Floats | None,
    groups: NDArray[Any] | None,
) -> list[str]:
    """Return the names of the transforms, one for each target, that describe left-out rows best.

    Args:
        inputs: ``(N, D)``; missing values are replaced by the mean.
        scales: Means and standard deviations by which inputs are standardised, ``(D,)`` each.
        target: ``(N, K)``.
        weight: Weights of the rows, ``(N,)``; with ``None`` they are equal.
        groups: Groups of the rows, ``(N,)``. Rows of one group are left out together.
    """
    untransformed = ["none"] * target.shape[1]
    rows = np.random.default_rng(0).permutation(len(target))[:ROWS]
    folds = numbered(None if groups is None else groups[rows], len(rows)) % FOLDS
    if len(rows) < LEAST or len(rows) - np.bincount(folds).max() < LEAST // 2:  # beside the fold of a large group
        return untransformed
    candidates = [[name for name in NAMES if _allowed(name, column)] for column in target.T]
    standard = np.nan_to_num(standardized(inputs[rows], *scales).astype(np.float64))
    weight = np.ones(len(rows)) if weight is None else weight[rows]
    nlls = transform_nlls(candidates, standard, target[rows], weight, folds)
    return [names[_best(each, weight)] for names, each in zip(candidates, nlls, strict=True)]


def transform_nlls(
    names: Sequence[Sequence[str]],
    inputs: Floats,
    target: Floats,
    weight: Floats,
    folds: NDArray[np.int64],
) -> list[Floats]:
    """Return the negative log density of every row under Gaussian models that have not seen it, in the target's units.

    The models are ridge regressions; one decomposition serves all transforms and penalties. For every transform, the
    penalty and the variance of the noise are chosen by the leave-one-out errors of the training rows, which have a
    closed form.

    Args:
        names: Names of transforms, for each of the targets.
        inputs: Standardised, ``(N, D)``.
        target: ``(N, K)``.
        weight: Weights of the rows, ``(N,)``.
        folds: Number of the fold of each row, ``(N,)``.

    Returns:
        ``(transforms, N)`` for each of the targets.
    """
    from sklearn.linear_model import RidgeCV  # which predictions do not need

    design = _features(inputs)
    pairs = [(column, name) for column, tried in zip(target.T, names, strict=True) for name in tried]
    nlls = np.empty((len(pairs), len(target)))
    for fold in np.unique(folds):
        train, test = folds != fold, folds == fold
        values, slopes = np.empty((len(target), len(pairs))), np.empty((len(pairs), test.sum()))
        for number, (column, name) in enumerate(pairs):
            function = fitted(name, column[train], weight[train])
            values[:, number] = function(torch.tensor(column)).numpy()
            slopes[number] = function.log_slope(torch.tensor(column[test])).numpy()
        mean, std = column_scales(values[train], weight[train])
        share = weight[train] / weight[train].mean()
        model = RidgeCV(PENALTIES, alpha_per_target=True, gcv_mode="svd").fit(
            design[train], (values[train] - mean) / std, share
        )
        center, variance = model.predict(design[test]).reshape(-1, len(pairs)), np.maximum(-model.best_score_, SMALLEST)
        white = ((values[test] - mean) / std - center) / np.sqrt(variance)
        noise = 0.5 * np.log(2.0 * math.pi * variance) + np.log(std)
        nlls[:, test] = (0.5 * white**2 + noise).T - slopes
    return np.split(nlls, np.cumsum([len(tried) for tried in names])[:-1])


def _allowed(name: str, target: Floats) -> bool:
    """Whether a transform is considered. Quantiles are considered only if no value occurs in many rows, and others only
    if none piles up where they may be steep: at the smallest value, for Yeo and Johnson's also at the largest.
    """
    try:
        require(name, target)
    except ValueError:
        return False
    if name == "quantile":
        return not _repeats(target)
    piles = {"none": (), "yeo-johnson": (0, -1)}.get(name, (0,))
    return not any(_piles_up(target, end) for end in piles)


def _piles_up(target: Floats, end: int) -> bool:
    """Whether the smallest value (``end`` 0) or the largest one (-1) occurs in more than the share ``COMMON`` of the
    rows, and more than twice as often as each value between both, as the values of counts do not.
    """
    counts = np.unique(target, return_counts=True)[1]
    return bool(counts[end] > max(COMMON * len(target), 2.0 * counts[1:-1].max(initial=0)))


def _repeats(target: Floats) -> bool:
    """Whether one value occurs in more than the share ``COMMON`` of the rows."""
    return bool(np.unique(target, return_counts=True)[1].max() > COMMON * len(target))


def _best(nlls: Floats, weight: Floats) -> int:
    """Return the candidate with the largest gain over the first, less ``MARGIN`` standard errors of the gain.

    If several candidates are nearly equal, the first of them is returned. The gain of a row is limited, since that of a
    single wrong target would be the mean gain and its error alike.
    """
    gains = np.where(np.isfinite(nlls), nlls[0] - nlls, -np.inf)
    gains[0] = 0.0
    limited = gains.clip(-MOST, MOST)
    mean = np.average(limited, axis=1, weights=weight)
    error = np.sqrt(((limited - mean[:, None]) ** 2) @ weight**2) / weight.sum()
    bound = np.where(np.isfinite(gains).all(1), mean - MARGIN * error, -np.inf)
    return int(np.argmax(bound >= bound.max() - ALIKE))


def _features(inputs: Floats) -> Floats:
    """Return random hidden units, and the inputs themselves unless there are too many, ``(N, features)``."""
    generator = np.random.default_rng(0)
    count = min(FEATURES, len(inputs) // 2)
    weights = generator.standard_normal((inputs.shape[1], count)) / math.sqrt(inputs.shape[1])
    hidden = np.tanh(inputs @ weights + generator.standard_normal(count))
    design = np.concatenate([inputs, hidden], axis=1) if inputs.shape[1] <= FEATURES else hidden
    mean, std = column_scales(design)
    return np.asarray((design - mean) / std)
