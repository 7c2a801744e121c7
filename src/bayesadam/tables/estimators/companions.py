"""Models of other kinds that complement an estimator's networks.

Each is fitted with predictions of rows that it has not seen, by which the estimators weigh networks and companions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesadam.tables.estimators import plan
from bayesadam.tables.estimators.clock import Clock
from bayesadam.tables.estimators.linear import LinearPart, logistic_parts, ridge_parts
from bayesadam.tables.estimators.trees import TreesPart, classification_trees, regression_trees

Floats = NDArray[Any]
Companion = LinearPart | TreesPart


def regressors(
    inputs: Floats, targets: Floats, weight: Floats, divided: plan.Plan, clock: Clock
) -> list[tuple[Companion, Floats]]:
    """Fit the companions of a regressor, with predictions of rows that a fit has not seen.

    Args:
        inputs: Standardised, ``(N, D)``.
        targets: Standardised, ``(N, K)``.
        weight: Weights of the rows, ``(N,)``.
        divided: The rows that the members leave out.
        clock: The time for all of them. Those for which there is not enough time are left out.

    Returns:
        Pairs of a companion and predictions, ``(N, K)``, which are NaN for rows that no member leaves out.
    """
    rows = inputs, targets, weight / weight.mean(), divided, clock
    return [
        *clock.gathered("linear regressions", ridge_parts(*rows)),
        *clock.gathered("boosted trees", regression_trees(*rows)),
    ]


def classifiers(
    inputs: Floats, labels: NDArray[np.int64], classes: int, weight: Floats, divided: plan.Plan, clock: Clock
) -> list[tuple[LinearPart | TreesPart, Floats]]:
    """Fit the companions of a classifier, with log probabilities of rows that a fit has not seen.

    Args:
        inputs: Standardised, ``(N, D)``.
        labels: Indices of the classes, ``(N,)``.
        classes: Number ``C`` of classes.
        weight: Weights of the rows, ``(N,)``.
        divided: The rows that the members leave out.
        clock: The time for all of them. Those for which there is not enough time are left out.

    Returns:
        Pairs of a companion and log probabilities, ``(N, C)``, which are NaN for rows that no member leaves out.
    """
    rows = inputs, labels, classes, weight / weight.mean(), divided, clock
    return [
        *clock.gathered("logistic regressions", logistic_parts(*rows)),
        *clock.gathered("boosted trees", classification_trees(*rows)),
    ]
