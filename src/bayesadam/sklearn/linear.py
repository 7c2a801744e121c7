"""Logistic regressions beside a classifier's networks: linear, and additive with a piecewise linear function per input.

Networks of a few units learn neither a linear function nor one with kinks from little data as well as models that have
nothing else. An input with a skewed distribution, as a count, is cut at its quantiles (Gorishniy et al. 2022, section
3.2), so that its few large values do not decide about the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from bayesadam.sklearn.plan import Plan

Floats = NDArray[Any]
Pieces = tuple[NDArray[np.int64], Floats, Floats]
"""Column, beginning and end of every piece, ``(E,)`` each."""

PIECES = 12
"""Pieces that an input is cut into at most, by its quantiles."""

FOLDS = 4
STRENGTHS = (0.01, 0.05, 0.3)
"""Of scikit-learn's ``C``, the inverse strength of the penalty; the one that describes left-out rows best is taken."""

FEWEST = 40
"""Rows without which there are no such regressions."""

LARGEST = 4e6
"""Rows times coefficients of a fit; more rows are not used, and if fewer than 1,000 of more remain it is left out."""


@dataclass(frozen=True)
class LinearPart:
    """A logistic regression on ``clip((x[column] - low) / (high - low), 0, 1)``; it does not extrapolate.

    Attributes:
        column: Numbers of the inputs, ``(E,)``, one for every piece.
        low: Where each piece begins, ``(E,)``.
        high: Where it ends.
        coefficient: ``(C, E)``.
        intercept: ``(C,)``.
    """

    column: NDArray[np.int64]
    low: Floats
    high: Floats
    coefficient: Floats
    intercept: Floats

    def log_probs(self, inputs: Floats) -> Floats:
        """Log probabilities of the classes, ``(N, C)``, for standardised inputs ``(N, D)``."""
        at_once = max(1, int(LARGEST // max(1, len(self.column))))
        found = np.empty((len(inputs), len(self.intercept)))
        for first in range(0, len(inputs), at_once):
            features = _encoded(inputs[first : first + at_once], self.column, self.low, self.high)
            found[first : first + at_once] = log_softmax(features @ self.coefficient.T + self.intercept, axis=1)
        return found

    def record(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {name: value.tolist() for name, value in vars(self).items()}

    @classmethod
    def read(cls, record: Mapping[str, Any], inputs: int, classes: int) -> LinearPart:
        """Of what :meth:`record` gave, for so many inputs and classes.

        Raises:
            ValueError: Something else.
        """
        values: dict[str, Any] = {name: np.array(value, dtype=np.float64) for name, value in record.items()}
        found = cls(**{**values, "column": np.array(record["column"], dtype=np.int64)})
        pieces = found.column.shape
        shapes = {"coefficient": (classes, *pieces), "intercept": (classes,)}
        for name, value in vars(found).items():
            if value.shape != shapes.get(name, pieces) or value.ndim == 0 or not np.isfinite(value).all():
                raise ValueError(f"{name} of the linear part must be finite numbers in order, got {record[name]!r}")
        if not ((found.low < found.high).all() and (0 <= found.column).all() and (found.column < inputs).all()):
            raise ValueError("pieces of the linear part must be of the inputs, and begin before they end, got others")
        return found


def linear_parts(
    inputs: Floats, labels: NDArray[np.int64], classes: int, weight: Floats, divided: Plan
) -> list[tuple[LinearPart, Floats]]:
    """A linear and an additive regression, each with log probabilities of rows by fits that have not seen them.

    Args:
        inputs: Standardised, ``(N, D)``.
        labels: Numbers of the classes, ``(N,)``.
        classes: How many there are.
        weight: Of the rows, ``(N,)``.
        divided: Rows that the members leave out. The log probabilities, ``(N, C)``, are for these rows; others are NaN.

    Returns:
        An empty list with fewer than 40 rows; only the first where the second has too many features.
    """
    folds = [divided.left_out[0]] if divided.shared else [divided.fold % FOLDS == fold for fold in range(FOLDS)]
    folds = [fold for fold in folds if fold.any()]
    if len(labels) < FEWEST or any(len(np.unique(labels[~fold])) < 2 for fold in folds):
        return []
    found = []
    ends, parts = _pieces(inputs, 1), _pieces(inputs, PIECES)
    both: Pieces = (*map(np.concatenate, zip(ends, parts, strict=True)),)  # type: ignore[assignment]
    for pieces in (ends, both):
        rows = int(LARGEST // (len(pieces[0]) * (classes if classes > 2 else 1))) if len(pieces[0]) else 0
        if rows < min(len(labels), 1_000):
            continue
        used = _spread(len(labels), rows)
        candidates = []
        for strength in STRENGTHS:
            unseen = np.full((len(labels), classes), np.nan)
            for fold in folds:
                part = _fitted(inputs, pieces, labels, classes, weight, used & ~fold, strength)
                unseen[fold] = part.log_probs(inputs[fold])
            left_out = np.any(folds, axis=0)
            gain = weight[left_out] @ unseen[left_out, labels[left_out]]
            candidates.append((gain, strength, unseen))
        _, strength, unseen = max(candidates, key=lambda candidate: candidate[0])
        found.append((_fitted(inputs, pieces, labels, classes, weight, used, strength), unseen))
    return found


def _pieces(inputs: Floats, most: int) -> Pieces:
    """Column, beginning and end of every piece; a column that is constant has none, and two values make one."""
    found: list[tuple[int, float, float]] = []
    for column, values in enumerate(inputs.T):
        knots = np.unique(np.quantile(values.astype(np.float64), np.linspace(0.0, 1.0, most + 1)))
        if most > 1 and len(knots) < 3:
            continue
        found += [(column, low, high) for low, high in zip(knots[:-1].tolist(), knots[1:].tolist(), strict=True)]
    columns = np.array([piece[0] for piece in found], dtype=np.int64)
    return columns, np.array([piece[1] for piece in found]), np.array([piece[2] for piece in found])


def _encoded(inputs: Floats, column: NDArray[np.int64], low: Floats, high: Floats) -> Floats:
    return np.asarray(np.clip((inputs[:, column].astype(np.float64) - low) / (high - low), 0.0, 1.0))


def _spread(count: int, most: int) -> NDArray[np.bool_]:
    """Which of so many rows are used; all of them, if they are not more than that."""
    used = np.zeros(count, dtype=bool)
    used[np.linspace(0, count - 1, min(count, most)).astype(np.int64)] = True
    return used


def _fitted(
    inputs: Floats,
    pieces: Pieces,
    labels: NDArray[np.int64],
    classes: int,
    weight: Floats,
    rows: NDArray[np.bool_],
    strength: float,
) -> LinearPart:
    """By some of the rows; a class that is not among them is as probable as one row makes it, whatever the inputs."""
    features = _encoded(inputs[rows], *pieces)
    mean, scale = features.mean(0), 1.0 / np.maximum(features.std(0), 1e-6)
    model = LogisticRegression(C=strength, max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the penalty is stronger than what is left to gain
        model.fit((features - mean) * scale, labels[rows], weight[rows] / weight[rows].mean())
    coefficient, intercept = model.coef_, model.intercept_
    if len(model.classes_) == 2:
        coefficient, intercept = np.concatenate([-coefficient, coefficient]) / 2, np.append(-intercept, intercept) / 2
    whole = np.zeros((classes, features.shape[1]))
    level = np.full(classes, intercept.min() - np.log(len(features)))
    whole[model.classes_] = coefficient * scale
    level[model.classes_] = intercept - (coefficient * scale) @ mean
    return LinearPart(*pieces, whole, level)
