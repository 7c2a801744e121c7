"""Cross-conformal intervals of the regressor: every training row calibrates, by members that have not seen it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]

INTERVALS = ("bayes", "cross")
ROUNDING = 1e-12
"""Tolerance of the ceiling: ``100 * 0.55`` is slightly more than 55 in floating point, and its ceiling must be 55."""
AT_ONCE = 2**22
"""Maximum size of an intermediate result, which limits the number of rows that are evaluated together."""


def check_method(method: object, left_out: object) -> None:
    """Raise ``ValueError`` for a method of intervals that is unknown, or that needs rows which no member left out."""
    if not isinstance(method, str) or method not in INTERVALS:
        raise ValueError(f"method must be one of {INTERVALS}, got {method!r}")
    if method == "cross" and left_out is None:
        raise ValueError(
            "method must not be 'cross' if members left out no rows, or if these rows were not scored "
            "(calibrate=False, or a likelihood that is not Gaussian), got 'cross'"
        )


def conformal_rank(rows: int, coverage: float) -> int:
    """Return ``ceil((n + 1) coverage)``, or raise ``ValueError`` if that is more than the ``n`` rows.

    The score of a further row that is exchangeable with these is at most the score of this rank with a probability of
    at least ``coverage`` (Vovk et al. 2005; Lei et al. 2018, Theorem 2.2). The ``n + 1`` counts the further row.
    """
    rank = math.ceil((rows + 1) * coverage - ROUNDING)
    if rank > rows:
        raise ValueError(
            f"coverage must be at most n / (n + 1) = {rows / (rows + 1):.4g} with {rows} calibration rows, "
            f"got {coverage!r}: the interval would be infinite"
        )
    return rank


def cross_intervals(errors: Tensor, folds: Tensor, predictions: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
    """Return the intervals of CV+ (Barber et al. 2021).

    Model ``k`` was trained without the rows of fold ``k``. With the absolute errors ``R_i`` of the models on the rows
    they have not seen, the upper end is the ``ceil((n + 1) coverage)``-th smallest of the ``n`` numbers
    ``prediction_{k(i)}(x) + R_i``, and the lower end is the corresponding largest number with ``- R_i``. If all rows
    are exchangeable and a fold has no influence on its model, a new target is covered with a probability of at least
    ``1 - 2 alpha - sqrt(2 / n)`` for folds of equal size (Theorem 4; ``alpha = 1 - coverage``).

    Args:
        errors: ``(n, K)``.
        folds: Number of the fold of each row, ``(n,)``.
        predictions: Predictions of the new rows by all models, ``(F, N, K)``.
        coverage: Probability in [0.5, 1); below 0.5 nothing is guaranteed.

    Returns:
        Lower and upper ends, ``(N, K)`` each.

    Raises:
        ValueError: The coverage is below 0.5, or there are too few rows for it.
    """
    if not coverage >= 0.5:
        raise ValueError(f"coverage must be in [0.5, 1) of cross-conformal intervals, got {coverage!r}")
    rank = conformal_rank(len(errors), coverage)
    parts = []
    for part in torch.split(predictions, max(1, AT_ONCE // errors.numel()), dim=1):
        centers, own = part[folds].movedim(0, -1), errors.movedim(0, -1)  # (N, K, n)
        lower = (centers - own).kthvalue(len(errors) + 1 - rank).values
        parts.append((lower, (centers + own).kthvalue(rank).values))
    lower, upper = (torch.cat(ends) for ends in zip(*parts, strict=True))
    return lower, upper


@dataclass(frozen=True)
class LeftOutScores:
    """Absolute errors on training rows of the members that left them out.

    Rows that the same members left out are a fold. The model of a fold is the mean of these members.

    Attributes:
        members: Members that left out each fold, ``(F, M)`` bool.
        folds: Number of the fold of each row, ``(n,)``.
        scores: Scores, ``(n, K)``.
    """

    members: NDArray[np.bool_]
    folds: NDArray[np.int64]
    scores: Floats

    @classmethod
    def of(cls, left_out: NDArray[np.bool_], scores: Floats) -> LeftOutScores:
        """Create the scores from the mask of the rows that each member left out, ``(M, n)``."""
        members, folds = np.unique(left_out.T, axis=0, return_inverse=True)
        return cls(members, folds.reshape(-1).astype(np.int64), scores)

    def models(self, members: Any) -> torch.Tensor:
        """Return the predictions of the folds' models, ``(F, N, ...)``, from those of the members, ``(M, N, ...)``."""
        share = torch.from_numpy(self.members / self.members.sum(1, keepdims=True))
        found: torch.Tensor = torch.tensordot(share, torch.as_tensor(members, dtype=torch.float64).cpu(), 1)
        return found
