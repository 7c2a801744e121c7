"""Models of other kinds that complement an estimator's networks.

Each is fitted with predictions of rows that it has not seen, by which the estimators weigh networks and companions.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from bayesadam.tables.estimators.linear import LinearPart, linear_parts
from bayesadam.tables.estimators.rows import TrainingRows
from bayesadam.tables.estimators.trees import TreesPart, tree_parts

Companion = LinearPart | TreesPart
Companions = list[tuple[Companion, NDArray[Any]]]
"""Companions with predictions of the training rows, ``(N, K)`` or log probabilities ``(N, C)``, by fits that have not
seen these rows; they are NaN for rows that no member leaves out.
"""


def companions(rows: TrainingRows, classes: int = 0) -> Companions:
    """Fit the companions of a regressor, or of a classifier if there are ``classes``."""
    return [*linear_parts(rows, classes), *tree_parts(rows, classes)]
