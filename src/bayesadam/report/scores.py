"""The table of held-out scores: one row per model, with marks on the best score of every column."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayesadam.report.numbers import NONE, percent, same_decimals


@dataclass(frozen=True)
class Column:
    """One column of the table.

    Attributes:
        name: Name of the score.
        hint: Text that says which direction is better, or an empty text.
        cells: Text, and whether it is the best score, by model.
    """

    name: str
    hint: str
    cells: Mapping[str, tuple[str, bool]]


def scores(metrics: Mapping[str, Any]) -> list[Column]:
    """Return the columns, that of the error first. No duration is marked as the best."""
    models = {model: values or {} for model, values in metrics.items()}
    names = list(dict.fromkeys(name for values in models.values() for name in values))
    names.sort(key=lambda name: name not in ("RMSE", "accuracy"))
    return [_column(name, {model: values.get(name) for model, values in models.items()}) for name in names]


def _column(name: str, values: Mapping[str, Any]) -> Column:
    hint, distance = _aim(name)
    shares = name in ("accuracy", "coverage 95%")
    numbers = {
        model: float(value)
        for model, value in values.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
    shown = [percent(value, 1) for value in numbers.values()] if shares else same_decimals(numbers.values())
    texts = dict.fromkeys(values, NONE) | dict(zip(numbers, shown, strict=True))
    best: set[str] = set()
    if hint and len(numbers) > 1:
        least = min(distance(value) for value in numbers.values())
        # Scores with the same text are equally good.
        leaders = {texts[model] for model, value in numbers.items() if distance(value) == least}
        best = {model for model in numbers if texts[model] in leaders}
    return Column(name, hint, {model: (texts[model], model in best) for model in values})


def _aim(name: str) -> tuple[str, Any]:
    if name == "coverage 95%":
        return "95% is best", lambda value: abs(value - 0.95)
    if name == "accuracy":
        return "higher is better", lambda value: -value
    if "seconds" in name:
        return "", lambda value: value
    return "lower is better", lambda value: value
