"""The tables of scores, of mistaken classes, and of the inputs by importance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayesadam.tables.report.numbers import NONE, number, percent, same_decimals
from bayesadam.tables.report.predicted import PredictedClasses

_CLASSES, _INPUTS = 20, 15
"""Maximum numbers of classes of the confusion matrix, and of inputs in the table of their importance."""


MEANINGS = {
    "NLL": "negative log-likelihood in nats, which wrong predictions and wrong uncertainty make larger",
    "RMSE": "root mean squared error",
    "CRPS": "continuous ranked probability score, the absolute error of a whole distribution",
    "coverage 95%": "share of the rows inside their intervals",
    "accuracy": "share of the rows whose most probable class is right",
    "ECE": "expected calibration error, the distance between confidence and accuracy",
    "Brier": "mean squared distance between the probabilities and the class",
}

Column = tuple[str, str, dict[str, tuple[str, bool]]]
"""Name of a score, which direction is better, and by model a text and whether it is the best score."""


def scores(metrics: Mapping[str, Any]) -> list[Column]:
    """Return the columns of scores that all models have, that of the error first. No duration is marked as the best."""
    names = sorted(next(iter(metrics.values())), key=lambda name: name not in ("RMSE", "accuracy"))
    return [_column(name, {model: values[name] for model, values in metrics.items()}) for name in names]


def meanings(metrics: Mapping[str, Any]) -> str:
    """Return what the scores are, and what the constant is, as one line."""
    lines = [f"{name} is the {MEANINGS[name]}" for name, *_ in scores(metrics) if name in MEANINGS]
    return "; ".join([*lines, *["the constant ignores the inputs"] * ("constant" in metrics)])


def _column(name: str, values: Mapping[str, float | None]) -> Column:
    hint, distance = _aim(name)
    comparable = {model: value for model, value in values.items() if value is not None and math.isfinite(value)}
    shares = name in ("accuracy", "coverage 95%")
    shown = [percent(value, 1) for value in comparable.values()] if shares else same_decimals(comparable.values())
    texts = dict.fromkeys(values, NONE) | dict(zip(comparable, shown, strict=True))
    leaders: set[str] = set()
    if hint and len(comparable) > 1:
        least = min(map(distance, comparable.values()))
        leaders = {texts[model] for model, value in comparable.items() if distance(value) == least}
    # Scores with the same text are equally good.
    return name, hint, {model: (text, text in leaders) for model, text in texts.items()}


def _aim(name: str) -> tuple[str, Any]:
    if name == "coverage 95%":
        return "95% is best", lambda value: abs(value - 0.95)
    if name == "accuracy":
        return "higher is better", lambda value: -value
    if "seconds" in name:
        return "", lambda value: value
    return "lower is better", lambda value: value


def confusion(rows: PredictedClasses, classes: Sequence[str]) -> dict[str, Any]:
    """Return a table of the counts of actual and predicted classes, limited to the classes with the most mistakes.

    Rows with weights, which are 1 on average, count by these.

    Returns:
        "names" of the classes, "rows" with pairs of a class and its cells, which are pairs of a text and of the share
        of the rows of the class, and the number of classes that are left out, "more".
    """
    label, predicted = rows.label, rows.predicted
    weight = np.ones(len(label)) if rows.weight is None else rows.weight / rows.weight.mean()
    wrong = label != predicted
    both, weights = np.concatenate([label[wrong], predicted[wrong]]), np.tile(weight[wrong], 2)
    mistakes = np.bincount(both, weights, minlength=len(classes))
    shown = np.sort(np.argsort(-mistakes, kind="stable")[:_CLASSES])
    names = [classes[code] for code in shown]
    cells = []
    for code in shown:
        part = label == code
        counts = np.bincount(predicted[part], weight[part], minlength=len(classes))
        total = counts.sum() or 1.0
        cells.append([(f"{count:,.0f}" if count else "", float(count / total)) for count in counts[shown]])
    return {"names": names, "rows": list(zip(names, cells, strict=True)), "more": len(classes) - len(names)}


def importance(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a table of the increase of the error if the values of an input are shuffled, the largest first.

    Returns:
        "rows" with the input, the increase with two of its standard deviations, and its share of the largest one; and
        the number of inputs that are left out, "more".
    """
    ranked = sorted(entries, key=lambda entry: -entry["gain"])
    largest = max(ranked[0]["gain"], 1e-300)
    rows = [
        (entry["name"], f"{number(entry['gain'])} ± {number(2 * entry['error'])}", max(entry["gain"] / largest, 0.0))
        for entry in ranked[:_INPUTS]
    ]
    return {"rows": rows, "more": len(ranked) - len(rows)}
