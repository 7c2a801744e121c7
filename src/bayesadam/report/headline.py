"""The result in words: the error, the width of the intervals, their coverage, and the comparison with other models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from scipy import stats

from bayesadam.report.numbers import number, percent
from bayesadam.report.predicted import FEW, LEVEL, Predicted, PredictedNumbers, counted
from bayesadam.report.verdict import verdict

OURS = "bayesadam"


def headline(held_out: Predicted | None, unseen: Predicted | None, margins: Mapping[str, Any]) -> list[Markup]:
    """Return the sentences for the top of the page. Their values are escaped and put in ``<strong>``.

    Args:
        held_out: Held-out rows, for the error.
        unseen: All rows that the networks have not seen, for the verdict on uncertainty.
        margins: NLL of each other model minus ours, and the standard error of the difference, by name of the model.
    """
    if held_out is None or unseen is None:
        return [Markup("No prediction of a held-out row is finite, so nothing is known about new data.")]
    return [
        sentence for sentence in (_error(held_out), _promise(unseen), _knows(unseen), _comparison(margins)) if sentence
    ]


def _error(rows: Predicted) -> Markup:
    where = counted(rows, "held-out row")
    if isinstance(rows, PredictedNumbers):
        text = (
            "On {}, the typical error (root mean square) is <strong>{}</strong>, and the {} intervals are typically "
            "<strong>{}</strong> wide ({} without the inputs)."
        )
        error, width = np.sqrt(rows.errors[0].mean()), np.median(rows.upper - rows.lower)
        alone = np.ptp(np.quantile(rows.y, [0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL]))
        return _fill(text, where, number(float(error)), percent(LEVEL), number(float(width)), number(float(alone)))
    right, usual = float(rows.right.mean()), float(np.bincount(rows.label).max() / len(rows))
    text = "On {}, it is right in <strong>{}</strong> ({} without the inputs)."
    return _fill(text, where, percent(right, 1), percent(usual, 1))


def _promise(rows: Predicted) -> Markup:
    """Return the verdict on the intervals or on the probabilities."""
    if len(rows) < FEW:
        return Markup("")
    where = counted(rows, "row", " that its networks had not seen")
    if isinstance(rows, PredictedNumbers):
        text = "Of {}, the intervals cover <strong>{}</strong>, {}."
        return _fill(text, where, percent(float(rows.inside.mean())), verdict(rows))
    sure, right = (percent(float(values.mean()), 1) for values in (rows.confidence, rows.right))
    text = "On {}, it is <strong>{}</strong> sure on average, and right in {}, {}."
    return _fill(text, where, sure, right, verdict(rows))


def _knows(rows: Predicted) -> Markup:
    """Compare the errors of the more certain half of the rows with those of the other half, and test the difference."""
    actual, expected = rows.errors
    if len(actual) < FEW or not np.isfinite(expected).all():
        return Markup("")
    sure, unsure = np.array_split(actual[np.argsort(expected, kind="stable")], 2)
    gap = float(unsure.mean() - sure.mean())
    known = gap > 2.0 * math.hypot(stats.sem(sure), stats.sem(unsure))
    regression = isinstance(rows, PredictedNumbers)
    halves = [number(math.sqrt(half.mean())) if regression else percent(half.mean(), 1) for half in (sure, unsure)]
    return _fill(
        "{}: the {} is <strong>{}</strong> on the half it is surest of, <strong>{}</strong> on the other half.",
        "It knows when it is wrong" if known else "Whether it knows when it is wrong cannot be told from these rows",
        "error" if regression else "share of errors",
        *halves,
    )


def _comparison(margins: Mapping[str, Any]) -> Markup:
    """Compare with other models by the NLL, which takes uncertainty into account.

    If a difference is within two of its standard errors, neither model is called better.
    """
    groups: dict[str, list[str]] = {"better than": [], "worse than": [], "not clearly different from": []}
    known = {model: margin for model, margin in margins.items() if margin is not None}
    for model, (above, error) in known.items():
        clear = "better than" if above > 0 else "worse than"
        groups[clear if abs(above) > 2.0 * error else "not clearly different from"].append(model)
    parts = [f"{words} {' and '.join(models)}" for words, models in groups.items() if models]
    text = "Measured with its uncertainty (negative log-likelihood), it is {}."
    return _fill(text, ", but ".join(parts)) if parts else Markup("")


def _fill(text: str, *values: Any) -> Markup:
    return Markup(text).format(*values)
