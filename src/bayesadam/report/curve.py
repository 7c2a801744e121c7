"""The verdict on uncertainty: tests of the whole calibration curve, given the number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from bayesadam.report.values import Array, columns, equal_counts, percent

LEVEL = 0.05
"""Probability below which a difference is not attributed to chance."""

NARROW = 0.12
"""Width of a confidence interval of a share above which there is no verdict."""

MANY = 200
"""Number of rows with which an error of 0.1 anywhere in the curve would be noticed."""

_PER_GROUP = 10


def intervals(held: Mapping[str, Any], inside: int, rows: int, nominal: float) -> str:
    """Return the verdict on intervals, as the end of a sentence on their coverage.

    The coverage that the sentence states and the curve of all levels are tested, each at half of 5%.

    Args:
        held: Columns of the held-out rows; the curve is computed from "pit" if it is given.
        inside: Number of rows inside their intervals.
        rows: Number of rows.
        nominal: Nominal coverage of the intervals.
    """
    (pit,) = columns(held, "pit")
    tests = 2.0 if len(pit) else 1.0
    covered = stats.binomtest(inside, rows, nominal)
    if covered.pvalue < LEVEL / tests:
        too_few = inside < nominal * rows
        return (
            "less than they promise: they are too narrow"
            if too_few
            else ("more than they promise: they are wider than need be")
        )
    if len(pit):
        # Kolmogorov's test of the levels at which the intervals would just contain their targets
        test = stats.kstest(2.0 * np.abs(pit - 0.5), "uniform")
        if test.pvalue < LEVEL / tests:
            level = float(test.statistic_location)
            reached = level + test.statistic_sign * float(test.statistic)
            kind = "narrow" if reached < level else "wide"
            return f"but those of other levels are too {kind}: {percent(level)} intervals cover {percent(reached)}"
    low, high = covered.proportion_ci(method="wilson")
    if high - low > NARROW:
        return f"which says little: of all rows they may cover anything from {percent(low)} to {percent(high)}"
    return "as they should, at this level and all others" if len(pit) >= MANY else "as they should"


def probabilities(confidence: Array, right: Array) -> str:
    """Return the verdict on the probabilities of predicted classes, as the end of a sentence.

    The mean difference between confidence and accuracy is tested, and the differences in ten groups by confidence
    together (Hosmer and Lemeshow 1980), each at half of 5%.
    """
    gap = float(confidence.mean() - right.mean())
    noise = float(np.sqrt((confidence * (1.0 - confidence)).sum())) / len(right)
    if abs(gap) > 2.2414 * noise:
        return "too sure of itself" if gap > 0 else "more careful than it need be"
    groups = equal_counts(confidence, 10, _PER_GROUP)
    expected = np.array([confidence[group].mean() for group in groups])
    actual = np.array([right[group].mean() for group in groups])
    variance = [
        max(float((confidence[group] * (1.0 - confidence[group])).mean()), 1e-4) / len(group) for group in groups
    ]
    terms = (actual - expected) ** 2 / np.array(variance)
    if len(groups) > 2 and stats.chi2.sf(terms.sum(), len(groups)) < 0.5 * LEVEL:
        worst = int(terms.argmax())
        kind = "too sure" if actual[worst] < expected[worst] else "too careful"
        return (
            "as sure as it should be on average, but not everywhere: of the "
            f"{len(groups[worst])} rows called with about {percent(expected[worst])} confidence "
            f"{percent(actual[worst])} are right, where it is {kind}"
        )
    low, high = stats.binomtest(round(float(right.sum())), len(right)).proportion_ci(method="wilson")
    if high - low > NARROW:
        return f"which may be as it should: of all rows anything from {percent(low)} to {percent(high)} may be right"
    return "as sure as it should be"
