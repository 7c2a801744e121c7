"""Conformal intervals and sets of the estimators: the available methods, and the scores that are stored for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]

INTERVALS = ("bayes", "split", "adaptive", "cross")
SETS = ("bayes", "split", "cross")


def check_method(method: object, methods: Collection[str], conformalized: Collection[str], left_out: object) -> None:
    """Raise ``ValueError`` for a method of intervals or sets that is unknown, or whose scores are not available.

    Args:
        method: The method that was given.
        methods: The known methods.
        conformalized: The methods for which ``conformalize`` has stored scores.
        left_out: Scores of the rows that members left out, or ``None``.
    """
    if not isinstance(method, str) or method not in methods:
        raise ValueError(f"method must be one of {tuple(methods)}, got {method!r}")
    if method in ("split", "adaptive") and method not in conformalized:
        raise ValueError(
            f"method must be 'bayes' or 'cross' before conformalize(X, y) with held-out rows, got {method!r}"
        )
    if method == "cross" and left_out is None:
        raise ValueError(
            "method must not be 'cross' if members left out no rows, or if these rows were not scored "
            "(calibrate=False, or a likelihood that is not Gaussian), got 'cross'"
        )


@dataclass(frozen=True)
class LeftOutScores:
    """Scores of training rows under the members that left them out.

    Rows that the same members left out are a fold. The model of a fold is the mean of these members.

    Attributes:
        members: Members that left out each fold, ``(F, M)`` bool.
        folds: Number of the fold of each row, ``(n,)``.
        scores: Scores, ``(n, K)``, rounded to the six digits with which they are saved.
    """

    members: NDArray[np.bool_]
    folds: NDArray[np.int64]
    scores: Floats

    @classmethod
    def of(cls, left_out: NDArray[np.bool_], scores: Floats) -> LeftOutScores:
        """Create the scores from the mask of the rows that each member left out, ``(M, n)``."""
        members, folds = np.unique(left_out.T, axis=0, return_inverse=True)
        return cls(members, folds.reshape(-1).astype(np.int64), _rounded(scores))

    def models(self, members: Any) -> torch.Tensor:
        """Return the predictions of the folds' models, ``(F, N, ...)``, from those of the members, ``(M, N, ...)``."""
        share = torch.from_numpy(self.members / self.members.sum(1, keepdims=True))
        found: torch.Tensor = torch.tensordot(share, torch.as_tensor(members, dtype=torch.float64).cpu(), 1)
        return found

    def record(self) -> dict[str, Any]:
        """Return a dictionary that can be written as JSON."""
        members = [np.flatnonzero(row).tolist() for row in self.members]
        return {"members": members, "folds": self.folds.tolist(), "scores": self.scores.T.tolist()}

    @classmethod
    def read(cls, record: Mapping[str, Any], members: int, width: int) -> LeftOutScores:
        """Create the scores from the dictionary of :meth:`record`, for a number of members and of scores per row.

        Raises:
            ValueError: The dictionary is not one that :meth:`record` returned.
        """
        folds, scores = np.array(record["folds"]), np.array(record["scores"], dtype=np.float64).T
        mask = np.zeros((len(record["members"]), members), dtype=bool)
        for row, own in zip(mask, record["members"], strict=True):
            if not own or not all(isinstance(member, int) and 0 <= member < members for member in own):
                raise ValueError(f"members that left out rows must be numbers below {members}, got {own!r}")
            row[own] = True
        if folds.dtype.kind != "i" or folds.ndim != 1 or not ((folds >= 0) & (folds < len(mask))).all():
            raise ValueError(f"folds of rows left out must be numbers below {len(mask)}, got {record['folds']!r}")
        if scores.shape != (len(folds), width) or not np.isfinite(scores).all():
            raise ValueError(f"scores of rows left out must be finite, {width} for each of {len(folds)} rows")
        return cls(mask, folds.astype(np.int64), scores)


def _rounded(values: Floats) -> Floats:
    return np.array([float(f"{value:.6g}") for value in values.ravel()]).reshape(values.shape)
