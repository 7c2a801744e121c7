"""The verdict on uncertainty: a test of the promises, given the number of rows, and how much is epistemic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from bayesadam.tables.report.numbers import Array, percent
from bayesadam.tables.report.predicted import Predicted, PredictedNumbers
from bayesadam.tables.report.weighted import effective

CHANCE = 0.05
"""Probability below which a difference is not attributed to chance."""

UNCERTAIN = 0.12
"""Width of a confidence interval of a share above which there is no verdict."""


def verdict(rows: Predicted) -> str:
    """Return the verdict on intervals, or on the probabilities of predicted classes, as the end of a sentence.

    The number of kept promises is compared with its expectation, and so are the numbers in the first rows, ordered by
    uncertainty, for any number of first rows. Their normalised sums follow a Brownian motion, which exceeds a bound
    anywhere with at most twice the probability with which it does at the end. Intervals of all levels are tested
    together (Kolmogorov). Each test is at a third of 5%.
    """
    intervals = isinstance(rows, PredictedNumbers)
    observed, promised, key = rows.promises
    shown = rows.inside if isinstance(rows, PredictedNumbers) else observed
    order = np.argsort(key, kind="stable")
    weight = np.ones(len(rows)) if rows.weight is None else rows.weight / rows.weight.mean()
    variance = (weight**2 * promised * (1.0 - promised)).sum()
    excess = np.cumsum((weight * (observed - promised))[order]) / math.sqrt(max(variance, 1e-12))
    ends = np.flatnonzero(np.diff(key[order], append=np.inf))  # equal keys stay together
    end, worst = float(excess[-1]), int(ends[np.abs(excess[ends]).argmax()])
    if abs(end) > stats.norm.isf(CHANCE / 6):
        if intervals:
            less, kind = ("less", "narrow") if end < 0 else ("more", "wide")
            partly, whole = (percent(float(np.average(mask, weights=weight))) for mask in (observed, shown))
            aside = "" if partly == whole else f" ({partly} if rows on their ends count in part)"
            return f"{less} than they promise{aside}: they are too {kind}"
        return "too sure of itself" if end < 0 else "more careful than it need be"
    fine = "as they should" if intervals else "as sure as it should be"
    if abs(excess[worst]) > stats.norm.isf(CHANCE / 12):
        first = order[: worst + 1]
        share = percent(float(np.average(shown[first], weights=weight[first])))
        if intervals:
            kind = "narrow" if excess[worst] < 0 else "wide"
            where = f"with the narrowest intervals {share} are inside, where they are too {kind}"
        else:
            kind = "sure" if excess[worst] < 0 else "careful"
            where = f"it is least sure of {share} are right, where it is too {kind}"
        return f"{fine} on average, but not everywhere: of the {worst + 1:,} rows {where}"
    count = max(1, round(effective(len(rows), rows.weight)))
    if isinstance(rows, PredictedNumbers):
        level, reached = _largest_gap(2.0 * np.abs(rows.pit - 0.5), weight)
        kind = "narrow" if reached < level else "wide"
        if stats.kstwo.sf(abs(reached - level), count) < CHANCE / 3:
            return f"but those of other levels are too {kind}: {percent(level)} intervals cover {percent(reached)}"
    inside = round(float(np.average(shown, weights=weight)) * count)
    low, high = stats.binomtest(inside, count).proportion_ci(method="wilson")
    if high - low > UNCERTAIN:
        reach = f"of all rows anything from {percent(low)} to {percent(high)}"
        return f"which says little: {reach} may be {'inside' if intervals else 'right'}"
    return fine


def _largest_gap(values: Array, weight: Array) -> tuple[float, float]:
    """Return the value at which the distribution function of the values differs most from that of a uniform
    distribution, and the function there (the statistic of Kolmogorov).
    """
    order = np.argsort(values)
    share = weight[order] / weight.sum()
    levels, after = np.tile(values[order], 2), np.cumsum(share)
    reached = np.concatenate([after, after - share])
    place = int(np.abs(reached - levels).argmax())
    return float(levels[place]), float(reached[place])


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
    share = float(np.average(part, weights=rows.weight) / np.average(total, weights=rows.weight))
    ends = [percent(min(1.0, share * math.exp(sign * 2 * error))) for sign in (-1, 1)] if error else []
    limits = f" ({' to '.join(ends)} is possible)" if ends else ""
    return (
        f"Of the uncertainty of the predictions ({words}), {percent(share)}{limits} is there because few rows are like "
        "them (epistemic): more rows would reduce it. The rest is noise (aleatoric), which only further inputs could "
        "reduce."
    )


def failures(groups: Sequence[Mapping[str, Any]], task: str) -> dict[str, Any]:
    """Return a sentence on groups of rows in which the model keeps its promise less often, and a table of them.

    Args:
        groups: Groups by "name" and "values" of an input, with "rows", the number "right" of rows inside their
            intervals, or in the predicted class, and the number "expected". If the rows have weights, these two are
            numbers out of as many equal rows, "effective".
        task: "regression" or "classification".

    Returns:
        "sentence", and "rows" with texts: the input, its values, the number of rows, the share that is right, and the
        share that was promised. At most 5% of the groups in the table are expected to be there by chance (Benjamini and
        Hochberg 1995).
    """
    counts = [group.get("effective", group["rows"]) for group in groups]
    promised, right = ([g[name] / n for g, n in zip(groups, counts, strict=True)] for name in ("expected", "right"))
    chances = stats.binom.cdf(np.round(np.multiply(right, counts)), np.round(counts), promised)
    wrong = stats.false_discovery_control(chances) < CHANCE if groups else []
    rows = [
        (groups[i]["name"], groups[i]["values"], f"{groups[i]['rows']:,}", percent(right[i]), percent(promised[i]))
        for i in np.argsort(chances, kind="stable")
        if wrong[i]
    ]
    goal = "inside their intervals" if task == "regression" else "predicted right"
    first = f"{len(rows)} of {len(groups)}" if rows else f"None of {len(groups)}"
    sentence = f"{first} groups of rows, by values of the inputs, are {goal} less often than promised, beyond chance."
    return {"sentence": sentence, "rows": rows}
