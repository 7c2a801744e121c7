"""The verdict on uncertainty: tests of the whole calibration, and of groups of rows, and how much is epistemic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bayesadam.report.numbers import Array, count, percent
from bayesadam.report.predicted import LEVEL, Predicted, PredictedClasses, PredictedNumbers

CHANCE = 0.05
"""Probability below which a difference is not attributed to chance."""

UNCERTAIN = 0.12
"""Width of a confidence interval of a share above which there is no verdict."""

MANY = 200
"""Number of rows with which an error of 0.1 at any level of the intervals would be noticed."""


def intervals(rows: PredictedNumbers) -> str:
    """Return the verdict on intervals, as the end of a sentence on their coverage.

    The coverage of the 95% intervals and that of all levels are tested, each at half of 5%.
    """
    inside, number = int(rows.inside.sum()), len(rows)
    covered = stats.binomtest(inside, number, LEVEL)
    if covered.pvalue < CHANCE / 2:
        too_few = inside < LEVEL * number
        return f"{'less' if too_few else 'more'} than they promise: they are too {'narrow' if too_few else 'wide'}"
    # Kolmogorov's test of the levels at which the intervals would just contain their targets
    test = stats.kstest(2.0 * np.abs(rows.pit - 0.5), "uniform")
    if test.pvalue < CHANCE / 2:
        level = float(test.statistic_location)
        reached = level + test.statistic_sign * float(test.statistic)
        kind = "narrow" if reached < level else "wide"
        return f"but those of other levels are too {kind}: {percent(level)} intervals cover {percent(reached)}"
    low, high = covered.proportion_ci(method="wilson")
    if high - low > UNCERTAIN:
        return f"which says little: of all rows they may cover anything from {percent(low)} to {percent(high)}"
    return "as they should, at this level and all others" if number >= MANY else "as they should"


def probabilities(rows: PredictedClasses) -> str:
    """Return the verdict on the probabilities of predicted classes, as the end of a sentence.

    The mean difference between confidence and accuracy is tested, and the differences in groups by confidence together
    (Hosmer and Lemeshow 1980), each at half of 5%. The same number of errors, at least five, is expected in each group.
    """
    confidence, right = rows.confidence, rows.right.astype(np.float64)
    gap = float(confidence.mean() - right.mean())
    noise = float(np.sqrt((confidence * (1.0 - confidence)).sum())) / len(right)
    if abs(gap) > float(stats.norm.isf(CHANCE / 4)) * noise:
        return "too sure of itself" if gap > 0 else "more careful than it need be"
    groups = _equally_many_errors(confidence)
    expected, actual = (np.array([part[group].mean() for group in groups]) for part in (confidence, right))
    variance = np.array([(confidence[group] * (1.0 - confidence[group])).sum() / len(group) ** 2 for group in groups])
    terms = (actual - expected) ** 2 / np.maximum(variance, 1e-12)
    if len(groups) > 2 and stats.chi2.sf(terms.sum(), len(groups)) < CHANCE / 2:
        worst = int(terms.argmax())
        return (
            f"as sure as it should be on average, but not everywhere: of the {count(len(groups[worst]))} rows called "
            f"with about {percent(expected[worst])} confidence {percent(actual[worst])} are right, where it is too "
            f"{'sure' if actual[worst] < expected[worst] else 'careful'}"
        )
    low, high = stats.binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    if high - low > UNCERTAIN:
        return f"which may be as it should: of all rows anything from {percent(low)} to {percent(high)} may be right"
    return "as sure as it should be"


def _equally_many_errors(confidence: Array) -> list[NDArray[np.intp]]:
    """Return indices of rows in up to ten groups by confidence, with the same expected number of errors."""
    order = np.argsort(confidence, kind="stable")
    errors = np.cumsum(1.0 - confidence[order])
    number = int(min(10.0, max(1.0, errors[-1] / 5.0)))
    return np.split(order, np.searchsorted(errors, errors[-1] * np.arange(1, number) / number))


def epistemic(rows: Predicted, error: float | None) -> str:
    """Return a sentence on the epistemic part of the uncertainty; an empty one if the uncertainty is not finite.

    Args:
        rows: The rows.
        error: Standard deviation of the logarithm of the epistemic variance's factor, given the rows that members left
            out; ``None`` if it was not calibrated. The sentence states the range of two such deviations.
    """
    total, part, words = rows.uncertainty
    if not np.isfinite(total).all() or not total.sum() > 0:
        return ""
    share = float(part.sum() / total.sum())
    ends = [percent(min(1.0, share * math.exp(sign * 2 * error))) for sign in (-1, 1)] if error else []
    limits = f" (the rows left out allow {' to '.join(ends)})" if ends else ""
    return (
        f"Of the {words} of the predictions, {percent(share)}{limits} is uncertainty about the weights (epistemic), "
        "which more data would reduce; the rest is noise (aleatoric), which only other inputs could reduce."
    )


def failures(groups: Sequence[Mapping[str, Any]], task: str) -> dict[str, Any]:
    """Return a sentence on groups of rows in which the model keeps its promise less often, and a table of them.

    Args:
        groups: Groups by "name" and "values" of an input, with "rows" and the number "right" of rows inside their
            intervals, or in the predicted class. Those of a classification also have the number "expected" and its
            "variance".
        task: "regression" or "classification".

    Returns:
        "sentence", and "rows" with texts: the input, its values, the number of rows, the share that is right, and the
        share that was promised. At most 5% of the groups in the table are expected to be there by chance (Benjamini and
        Hochberg 1995).
    """
    chances = [_chance(group) for group in groups]
    wrong = stats.false_discovery_control(chances) < CHANCE if chances else np.zeros(0, dtype=bool)
    failed = [groups[i] for i in np.argsort(chances, kind="stable") if wrong[i]]
    rows = [
        (
            group["name"],
            group["values"],
            count(group["rows"]),
            percent(group["right"] / group["rows"]),
            percent(_expected(group) / group["rows"]),
        )
        for group in failed
    ]
    kept = "inside their intervals" if task == "regression" else "predicted right"
    first = f"{len(failed)} of {len(groups)}" if failed else f"None of {len(groups)}"
    sentence = f"{first} groups of rows, by values of the inputs, are {kept} less often than promised, beyond chance."
    return {"sentence": sentence, "rows": rows}


def _expected(group: Mapping[str, Any]) -> float:
    return float(group.get("expected", LEVEL * group["rows"]))


def _chance(group: Mapping[str, Any]) -> float:
    """Return the probability that at most so many rows are right although the model keeps its promise."""
    if "expected" not in group:
        return float(stats.binom.cdf(group["right"], group["rows"], LEVEL))
    deviation = math.sqrt(max(group["variance"], 1e-4 * group["rows"]))
    return float(stats.norm.cdf((group["right"] - group["expected"]) / deviation))
