"""The result in words: the error, the width of the intervals, their coverage, and the comparison with other models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from bayesadam.tables.report.numbers import number, percent
from bayesadam.tables.report.predicted import FEW, LEVEL, Predicted, PredictedNumbers, counted, weight_of
from bayesadam.tables.report.verdict import verdict
from bayesadam.tables.report.weighted import mean_and_error, quantile

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
        error = np.sqrt(np.average(rows.errors[0], weights=rows.weight))
        width = quantile(rows.upper - rows.lower, 0.5, rows.weight)
        alone = np.ptp(quantile(rows.y, [0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL], rows.weight))
        return _fill(text, where, number(float(error)), percent(LEVEL), number(float(width)), number(float(alone)))
    counts = np.bincount(rows.label, rows.weight)
    right, usual = float(np.average(rows.right, weights=rows.weight)), float(counts.max() / counts.sum())
    text = "On {}, it is right in <strong>{}</strong> ({} without the inputs)."
    return _fill(text, where, percent(right, 1), percent(usual, 1))


def _promise(rows: Predicted) -> Markup:
    """Return the verdict on the intervals or on the probabilities."""
    if len(rows) < FEW:
        return Markup("")
    where = counted(rows, "row", " that its networks had not seen")
    if isinstance(rows, PredictedNumbers):
        text = "Of {}, the intervals cover <strong>{}</strong>, {}."
        return _fill(text, where, percent(float(np.average(rows.inside, weights=rows.weight))), verdict(rows))
    means = (float(np.average(values, weights=rows.weight)) for values in (rows.confidence, rows.right))
    sure, right = (percent(mean, 1) for mean in means)
    text = "On {}, it is <strong>{}</strong> sure on average, and right in {}, {}."
    return _fill(text, where, sure, right, verdict(rows))


def _knows(rows: Predicted) -> Markup:
    """Compare the errors of the more certain half of the rows with those of the other half, and test the difference."""
    actual, expected = rows.errors
    if len(actual) < FEW or not np.isfinite(expected).all():
        return Markup("")
    parts = np.array_split(np.argsort(expected, kind="stable"), 2)
    (sure, one), (unsure, other) = (mean_and_error(actual[part], weight_of(rows, part)) for part in parts)
    wider = unsure - sure > 2.0 * math.hypot(one, other)
    regression = isinstance(rows, PredictedNumbers)
    halves = [number(math.sqrt(mean)) if regression else percent(mean, 1) for mean in (sure, unsure)]
    return _fill(
        "{}: the {} is <strong>{}</strong> on the half it is surest of, <strong>{}</strong> on the other half.",
        "It knows when it is wrong" if wider else "Whether it knows when it is wrong cannot be told from these rows",
        "error" if regression else "share of errors",
        *halves,
    )


def _comparison(margins: Mapping[str, Any]) -> Markup:
    """Compare with other models by the NLL, which takes uncertainty into account.

    If a difference is within two of its standard errors, neither model is called better.
    """
    groups: dict[str, list[str]] = {"better than": [], "worse than": [], "not clearly different from": []}
    comparable = {model: margin for model, margin in margins.items() if margin is not None}
    for model, (above, error) in comparable.items():
        clear = "better than" if above > 0 else "worse than"
        groups[clear if abs(above) > 2.0 * error else "not clearly different from"].append(model)
    parts = [f"{words} {' and '.join(models)}" for words, models in groups.items() if models]
    text = "Measured with its uncertainty (negative log-likelihood), it is {}."
    return _fill(text, ", but ".join(parts)) if parts else Markup("")


def _fill(text: str, *values: Any) -> Markup:
    return Markup(text).format(*values)
