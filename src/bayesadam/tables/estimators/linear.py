"""Regressions that complement an estimator's networks: a linear one, and an additive, piecewise linear one.

They are ridge regressions for numbers, and logistic regressions for classes.

From little data, networks with few units learn linear functions and functions with kinks less well than models that
consist of such functions. An input with a skewed distribution, such as a count, is divided at its quantiles (Gorishniy
et al. 2022, section 3.2), so that its few large values do not determine the function of the other values.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from bayesadam.tables.estimators import plan
from bayesadam.tables.estimators.calibration import effective_rows
from bayesadam.tables.estimators.rows import TrainingRows

Floats = NDArray[Any]
Pieces = tuple[NDArray[np.int64], Floats, Floats]
"""Column, lower end and upper end of every piece, ``(E,)`` each."""

PIECES = 12
"""Maximum number of pieces into which the quantiles of an input divide it."""

BEYOND = 1.0
"""Distance beyond the training rows, in ranges of an input in them, up to which its trend continues.

Of ordinary new rows many have an input beyond those of all training rows: 20% with 5 normal inputs and 60 rows.
"""

FOLDS = 4
"""Number of folds of a logistic regression, whose fits take longer. A ridge regression has all folds of the plan."""

STRENGTHS = (0.01, 0.05, 0.3)
"""Candidates for scikit-learn's ``C``, the inverse strength of the penalty; ``C`` is chosen on left-out rows."""

PENALTIES = 10.0 ** np.arange(-4.0, 5.0)
"""Candidates for the penalty of a ridge regression."""

FEWEST = 40
"""Minimum number of rows for these regressions."""

LARGEST = 4e6
"""Maximum of the number of rows times the number of coefficients of a fit. If there are more, the fit uses a part of
the rows, but at least 1,000 rows or all.
"""


INSIDE = 0.99
"""Share of the training rows that are inside the region."""


@dataclass(frozen=True)
class LinearPart:
    """A regression on the positions ``clip((x[column] - low) / (high - low), 0, 1)`` in pieces of the inputs.

    The first piece of an input is its whole range; its trend continues for ``BEYOND`` ranges on both sides.

    Attributes:
        column: Index of the input of every piece, ``(E,)``.
        low: Lower end of every piece, ``(E,)``.
        high: Upper end of every piece, ``(E,)``.
        coefficient: Coefficients of the outputs, which are numbers or logits of classes, ``(C, E)``.
        intercept: Intercepts of the outputs, ``(C,)``.
    """

    column: NDArray[np.int64]
    low: Floats
    high: Floats
    coefficient: Floats
    intercept: Floats

    def outputs(self, inputs: Floats) -> Floats:
        """Return the outputs, ``(N, C)``, for standardised inputs ``(N, D)``."""
        at_once = max(1, plan.AT_ONCE // max(1, len(self.column)))
        outputs = np.empty((len(inputs), len(self.intercept)))
        for first in range(0, len(inputs), at_once):
            features = _encoded(inputs[first : first + at_once], self.column, self.low, self.high)
            outputs[first : first + at_once] = features @ self.coefficient.T + self.intercept
        return outputs


@dataclass(frozen=True)
class Reach:
    """A sphere around the mean that contains the training rows, and their number.

    Attributes:
        square: Squared radius, in standardised inputs.
        rows: Effective number of rows.
    """

    square: float
    rows: float

    @classmethod
    def of(cls, inputs: Floats, weight: Floats) -> Reach:
        """Create the region of standardised training rows, ``(N, D)``, with weights ``(N,)``."""
        squares = np.square(inputs, dtype=np.float64).sum(1)
        order = np.argsort(squares)
        share = weight[order].cumsum() / weight.sum()
        return cls(float(squares[order[np.searchsorted(share, INSIDE)]]), effective_rows(weight))

    def leverage(self, inputs: Floats) -> Floats:
        """Return the additional epistemic variance, in units of the variance of the noise, ``(N,)``; it is 0 inside.

        The units of a network saturate far away from the data, so that its variance may stop growing. The variance of a
        linear trend does not: for standardised, uncorrelated inputs ``z``, a least squares fit has the variance ``noise
        (1 + |z|^2) / rows``. The difference between this variance and its value at the boundary of the region is added.
        """
        squares = np.square(inputs, dtype=np.float64).sum(1)
        return np.asarray(np.maximum(squares - self.square, 0.0) / self.rows)


def linear_parts(rows: TrainingRows, classes: int) -> Iterator[tuple[LinearPart, Floats]]:
    """Fit a linear and an additive regression, with predictions of rows that a fit has not seen.

    Args:
        rows: The rows.
        classes: Number of classes; 0 for a ridge regression of numbers.

    Yields:
        Pairs of a regression and predictions, numbers ``(N, K)`` or log probabilities ``(N, C)``, which are NaN for
        rows that no member leaves out. There are none with fewer than 40 rows, or if a fold has all rows of all classes
        but one, and only the first regression if the second has too many features.
    """
    inputs, targets, weight = rows.arrays()
    folds = rows.plan.masks(FOLDS if classes else plan.FOLDS)
    if len(targets) < FEWEST or (classes and any(len(np.unique(targets[~fold])) < 2 for fold in folds)):
        return
    left_out = np.any(folds, axis=0)
    for pieces, used in _designs(inputs, classes if classes > 2 else 1):
        if not classes:
            yield _ridge(inputs, pieces, targets, weight, used, folds)
            continue
        candidates = []
        for strength in STRENGTHS:
            unseen = np.full((len(targets), classes), np.nan)
            for fold in folds:
                part = _logistic(inputs, pieces, targets, classes, weight, used & ~fold, strength)
                unseen[fold] = log_softmax(part.outputs(inputs[fold]), axis=1)
            candidates.append((weight[left_out] @ unseen[left_out, targets[left_out]], strength, unseen))
        _, strength, unseen = max(candidates, key=lambda candidate: candidate[0])
        yield _logistic(inputs, pieces, targets, classes, weight, used, strength), unseen


def _designs(inputs: Floats, outputs: int) -> Iterator[tuple[Pieces, NDArray[np.bool_]]]:
    """Yield the pieces of both regressions, with a mask of the rows that are used, unless they are too many."""
    ends, parts = _pieces(inputs, 1), _pieces(inputs, PIECES)
    both: Pieces = (*map(np.concatenate, zip(ends, parts, strict=True)),)  # type: ignore[assignment]
    for pieces in (ends, both):
        rows = int(LARGEST // (len(pieces[0]) * outputs)) if len(pieces[0]) else 0
        if rows >= min(len(inputs), 1_000):
            yield pieces, spread(len(inputs), rows)


def _pieces(inputs: Floats, most: int) -> Pieces:
    """Return the pieces of all columns. A constant column has no piece, and a column with two values has one."""
    pieces: list[tuple[int, float, float]] = []
    for column, values in enumerate(inputs.T):
        knots = np.unique(np.quantile(values.astype(np.float64), np.linspace(0.0, 1.0, most + 1)))
        if most > 1 and len(knots) < 3:
            continue
        pieces += [(column, low, high) for low, high in zip(knots[:-1].tolist(), knots[1:].tolist(), strict=True)]
    columns = np.array([piece[0] for piece in pieces], dtype=np.int64)
    return columns, np.array([piece[1] for piece in pieces]), np.array([piece[2] for piece in pieces])


def _encoded(inputs: Floats, column: NDArray[np.int64], low: Floats, high: Floats) -> Floats:
    beyond = np.zeros(len(column))
    beyond[np.unique(column, return_index=True)[1]] = BEYOND
    return np.asarray(np.clip((inputs[:, column].astype(np.float64) - low) / (high - low), -beyond, 1.0 + beyond))


def spread(count: int, most: int) -> NDArray[np.bool_]:
    """Return a mask that selects at most ``most`` of ``count`` rows, evenly spaced."""
    used = np.zeros(count, dtype=bool)
    used[np.linspace(0, count - 1, min(count, most)).astype(np.int64)] = True
    return used


def _ridge(
    inputs: Floats,
    pieces: Pieces,
    targets: Floats,
    weight: Floats,
    used: NDArray[np.bool_],
    folds: Sequence[NDArray[np.bool_]],
) -> tuple[LinearPart, Floats]:
    """Fit a ridge regression to the rows that are used, and predict each fold by a fit to the rows of the others.

    The products of the features are summed once over all rows, and those of a fold are then subtracted.
    """
    features, own = _encoded(inputs[used], *pieces), weight[used, None]
    mean, scale = features.mean(0), 1.0 / np.maximum(features.std(0), 1e-6)
    table = np.column_stack([(features - mean) * scale, np.ones(len(features)), targets[used]])
    products, unseen = table.T @ (own * table), np.full(targets.shape, np.nan)

    def part(products: Floats, count: int) -> LinearPart:
        coefficient, intercept = _solved(products, features.shape[1], count)
        return LinearPart(*pieces, coefficient * scale, intercept - (coefficient * scale) @ mean)

    for fold in folds:
        at = fold[used]
        others = products - table[at].T @ (own[at] * table[at])
        unseen[fold] = part(others, int(np.count_nonzero(~at))).outputs(inputs[fold])
    return part(products, len(table)), unseen


def _solved(products: Floats, features: int, count: int) -> tuple[Floats, Floats]:
    """Return coefficients ``(K, E)`` and intercepts ``(K,)`` of a ridge regression.

    The penalty of each target has the least generalised cross-validation score (Golub, Heath and Wahba 1979, eq. 1.4).

    Args:
        products: Sums of the products of ``E`` features, a one, and ``K`` targets, ``(E + 1 + K, E + 1 + K)``.
        features: Number ``E`` of features.
        count: Number of rows.
    """
    sums = products[features]
    centred = products - np.outer(sums, sums) / sums[features]
    values, vectors = np.linalg.eigh(centred[:features, :features])
    values, total = np.maximum(values, 0.0), centred.diagonal()[features + 1 :]
    right = vectors.T @ centred[:features, features + 1 :]
    shrunk = right / (values + PENALTIES[:, None])[..., None]  # (penalties, E, K)
    squares = total - (shrunk * (2.0 * right - values[:, None] * shrunk)).sum(1)
    freedom = 1.0 + (values / (values + PENALTIES[:, None])).sum(1, keepdims=True)
    # The squares of a fit through all targets are rounding errors.
    scores = np.maximum(squares, 1e-10 * total) / np.maximum(count - freedom, 1e-10 * count) ** 2
    best = shrunk[scores.argmin(0), :, np.arange(len(total))]
    coefficient = best @ vectors.T
    return coefficient, (sums[features + 1 :] - coefficient @ sums[:features]) / sums[features]


def _logistic(
    inputs: Floats,
    pieces: Pieces,
    labels: NDArray[np.int64],
    classes: int,
    weight: Floats,
    rows: NDArray[np.bool_],
    strength: float,
) -> LinearPart:
    """Fit a logistic regression to some rows. A class without any of them gets constant log odds of about one row."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    features = _encoded(inputs[rows], *pieces)
    mean, scale = features.mean(0), 1.0 / np.maximum(features.std(0), 1e-6)
    model = LogisticRegression(C=strength, max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # more iterations would gain less than the penalty
        model.fit((features - mean) * scale, labels[rows], weight[rows] / weight[rows].mean())
    coefficient, intercept = model.coef_, model.intercept_
    if len(model.classes_) == 2:
        coefficient, intercept = np.concatenate([-coefficient, coefficient]) / 2, np.append(-intercept, intercept) / 2
    whole = np.zeros((classes, features.shape[1]))
    level = np.full(classes, intercept.min() - np.log(len(features)))
    whole[model.classes_] = coefficient * scale
    level[model.classes_] = intercept - (coefficient * scale) @ mean
    return LinearPart(*pieces, whole, level)
