"""Cross-conformal intervals of the regressor: every training row calibrates, by members that have not seen it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam.tables.estimators.plan import AT_ONCE

Floats = NDArray[np.float64]

INTERVALS = ("bayes", "cross")
ROUNDING = 1e-12
"""Tolerance of sums: ``100 * 0.55`` is slightly more than 55 in floating point, and 55 rows must be enough."""


def check_method(method: object, left_out: object) -> None:
    """Raise ``ValueError`` for a method of intervals that is unknown, or that needs rows which no member left out."""
    if not isinstance(method, str) or method not in INTERVALS:
        raise ValueError(f"method must be one of {INTERVALS}, got {method!r}")
    if method == "cross" and left_out is None:
        raise ValueError(
            "method must be 'bayes' for counts and other targets that are not Gaussian, and if no rows were left out "
            "and scored (calibrate=False), got 'cross'"
        )


def cross_intervals(
    errors: Tensor, folds: Tensor, weights: Tensor, predictions: Tensor, coverage: float
) -> tuple[Tensor, Tensor]:
    """Return the intervals of CV+ (Barber et al. 2021).

    Model ``k`` was trained without the rows of fold ``k``. With the absolute errors ``R_i`` of the models on the rows
    they have not seen, the upper end is the ``ceil((n + 1) coverage)``-th smallest of the ``n`` numbers
    ``prediction_{k(i)}(x) + R_i``, and the lower end is the corresponding largest number with ``- R_i``. If all rows
    are exchangeable and a fold has no influence on its model, a new target is covered with a probability of at least
    ``1 - 2 alpha - sqrt(2 / n)`` for folds of equal size (Theorem 4; ``alpha = 1 - coverage``).

    With weights, the ends are weighted quantiles (Tibshirani et al. 2019): the upper end is the smallest of the numbers
    up to which the weights add up to ``coverage`` times the sum of all weights and that of the new row, which is 1. The
    number of rows ``n`` is thus the sum of the weights.

    Args:
        errors: ``(n, K)``.
        folds: Number of the fold of each row, ``(n,)``.
        weights: Positive weights of the rows, ``(n,)``, which add up to the number of independent rows.
        predictions: Predictions of the new rows by all models, ``(F, N, K)``.
        coverage: Probability in [0.5, 1); below 0.5 nothing is guaranteed.

    Returns:
        Lower and upper ends, ``(N, K)`` each.

    Raises:
        ValueError: The coverage is below 0.5, or there are too few rows for it.
    """
    if not coverage >= 0.5:
        raise ValueError(f"coverage must be in [0.5, 1) of cross-conformal intervals, got {coverage!r}")
    rows = float(weights.sum())
    level = (rows + 1) * coverage - ROUNDING
    if level > rows:
        raise ValueError(
            f"coverage must be at most n / (n + 1) = {rows / (rows + 1):.4g} with {rows:g} independent rows, "
            f"got {coverage!r}: the interval would be infinite"
        )
    parts = []
    for part in torch.split(predictions, max(1, AT_ONCE // errors.numel()), dim=1):
        centers, scores = part[folds].movedim(0, -1), errors.movedim(0, -1)  # (N, K, n)
        parts.append((-_quantile(scores - centers, weights, level), _quantile(scores + centers, weights, level)))
    lower, upper = (torch.cat(ends) for ends in zip(*parts, strict=True))
    return lower, upper


def _quantile(values: Tensor, weights: Tensor, level: float) -> Tensor:
    """Return the smallest of the values, ``(N, K, n)``, up to which the weights add up to ``level``; ``(N, K)``."""
    if (weights == weights[0]).all():  # in a fifth of the time
        return values.kthvalue(min(math.ceil(level / float(weights[0])), len(weights))).values
    values, order = values.sort()
    place = (weights[order].cumsum(-1) < level).sum(-1, keepdim=True).clamp_max(len(weights) - 1)
    return values.gather(-1, place).squeeze(-1)


@dataclass(frozen=True)
class LeftOutScores:
    """Absolute errors on training rows of the members that left them out.

    Rows that the same members left out are a fold. The model of a fold is the mean of these members.

    Attributes:
        members: Members that left out each fold, ``(F, M)`` bool.
        folds: Number of the fold of each row, ``(n,)``.
        scores: Scores, ``(n, K)``.
        weights: Weights of the rows, ``(n,)``, which add up to the number of independent rows.
    """

    members: NDArray[np.bool_]
    folds: NDArray[np.int64]
    scores: Floats
    weights: Floats

    @classmethod
    def of(cls, left_out: NDArray[np.bool_], scores: Floats, weights: Floats) -> LeftOutScores:
        """Create the scores from the mask of the rows that each member left out, ``(M, n)``."""
        members, folds = np.unique(left_out.T, axis=0, return_inverse=True)
        return cls(members, folds.reshape(-1).astype(np.int64), scores, weights)

    def models(self, members: Any) -> torch.Tensor:
        """Return the predictions of the folds' models, ``(F, N, ...)``, from those of the members, ``(M, N, ...)``."""
        share = torch.from_numpy(self.members / self.members.sum(1, keepdims=True))
        means: torch.Tensor = torch.tensordot(share, torch.as_tensor(members, dtype=torch.float64).cpu(), 1)
        return means
