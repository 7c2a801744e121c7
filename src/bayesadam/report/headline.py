"""The result in words: the size of the error, the coverage, and whether uncertainty and error are related."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from bayesadam.report import classification, curve
from bayesadam.report.regression import LEVEL
from bayesadam.report.uncertainty import Errors, errors
from bayesadam.report.values import columns, number, percent, rounded, standard_error

_FEW = 20
"""Minimum number of rows for a statement on the relation of uncertainty and error."""
OURS = "bayesadam"


def headline(data: Mapping[str, Any]) -> list[Markup]:
    """Return the sentences for the top of the page. Their values are escaped and put in ``<strong>``."""
    held = data.get("held_out") or {}
    given = errors(held, data["task"])
    if given is None:
        return [Markup("No rows were held out, so nothing is known about how good the model is on new data.")]
    sentences = [_regression(held, given) if given.regression else _classification(held, given)]
    sentences.append(_knows(given))
    if comparison := _comparison(data.get("metrics") or {}, data.get("margins") or {}):
        sentences.append(comparison)
    return [sentence for sentence in sentences if sentence]


def _rows(given: Errors) -> Markup:
    count = len(given.actual)
    return (
        _fill("On <strong>one</strong> held-out row")
        if count == 1
        else _fill("On <strong>{}</strong> held-out rows", f"{count:,d}")
    )


def _regression(held: Mapping[str, Any], given: Errors) -> Markup:
    error = _fill("the typical error (root mean square) is <strong>{}</strong>", given.text(given.score(given.actual)))
    y, lower, upper = columns(held, "y", "lower", "upper")
    if not len(y):
        return _fill("{} {}.", _rows(given), error)
    inside = int(((lower <= y) & (y <= upper)).sum())
    share = _fill("the {} intervals cover <strong>{}</strong>", percent(LEVEL), percent(inside / len(y)))
    verdict = f", {curve.intervals(held, inside, len(y), LEVEL)}" if len(y) >= _FEW else ""
    return _fill("{} {}, and {}{}.", _rows(given), error, share, verdict)


def _classification(held: Mapping[str, Any], given: Errors) -> Markup:
    right = 1.0 - given.actual
    confidence = 1.0 - given.expected
    text = _fill("{} it is right in <strong>{}</strong>", _rows(given), percent(float(right.mean()), 1))
    sure = _fill(" and <strong>{}</strong> sure on average", percent(float(confidence.mean()), 1))
    return _fill("{}{}{}.", text, sure, f": {curve.probabilities(confidence, right)}" if len(right) >= _FEW else "")


def _knows(given: Errors) -> Markup:
    """Compare the errors of the more certain half of the rows with those of the other half, and test the difference."""
    if len(given.actual) < _FEW:
        return Markup("")
    order = np.argsort(given.expected, kind="stable")
    sure, unsure = np.array_split(given.actual[order], 2)
    gap = float(unsure.mean() - sure.mean())
    clear = gap > 2.0 * math.hypot(standard_error(sure), standard_error(unsure))
    halves = _fill(
        "<strong>{}</strong> on the half it is surest of, <strong>{}</strong> on the other half",
        given.text(given.score(sure)),
        given.text(given.score(unsure)),
    )
    words = "the error is" if given.regression else "the share of errors is"
    if clear and gap > 0:
        return _fill("It knows when it is wrong: {} {}.", words, halves)
    return _fill("Whether it knows when it is wrong cannot be told from these rows: {} {}.", words, halves)


def _comparison(metrics: Mapping[str, Any], margins: Mapping[str, Any]) -> Markup:
    """Compare the NLL, the score that takes uncertainty into account, with those of the other models.

    If the difference is within two of its standard errors, neither model is called better.
    """
    scores = {model: (values or {}).get("NLL") for model, values in metrics.items()}
    known = {
        model: score for model, score in scores.items() if isinstance(score, (int, float)) and math.isfinite(score)
    }
    if OURS not in known or len(known) < 2:
        return Markup("")
    ours = known.pop(OURS)
    groups: dict[str, list[str]] = {"lower than": [], "higher than": [], "not clearly other than": []}
    for model, score in known.items():
        above, error = margins.get(model) or (score - ours, 0.0)
        clear = "lower than" if above > 0 else "higher than"
        groups[clear if abs(above) > 2.0 * error else "not clearly other than"].append(model)
    parts = [
        _fill("{} {}", words, Markup(" and ").join(_fill("{} ({})", number(known[m]), m) for m in models))
        for words, models in groups.items()
        if models
    ]
    return _fill(
        "Its negative log-likelihood, <strong>{}</strong>, is {}; lower is better.",
        number(ours),
        Markup(", but ").join(parts),
    )


def _fill(text: str, *values: Any) -> Markup:
    return Markup(text).format(*values)


def figures(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of the numbers that are shown in large type."""
    held = data.get("held_out") or {}
    given = errors(held, data["task"])
    if given is None:
        return []
    shown = [("held-out rows", f"{len(given.actual):,d}")]
    if given.regression:
        shown.append(("RMSE", rounded(given.score(given.actual))))
        y, lower, upper = columns(held, "y", "lower", "upper")
        if len(y):
            shown.append((f"{LEVEL:.0%} intervals cover", percent(float(((lower <= y) & (y <= upper)).mean()), 1)))
    elif answers := classification.answers(held):
        shown.append(("accuracy", percent(float(answers.right.mean()), 1)))
        shown.append(("mean confidence", percent(float(answers.confidence.mean()), 1)))
    (nll,) = columns(held, "nll")
    if len(nll):
        shown.append(("NLL", number(float(nll.mean()))))
    return shown
