"""Importance and effects of inputs, and coverage by values of the inputs, on rows that the networks have not seen."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression

from bayesadam.tables.report.numbers import NONE
from bayesadam.tables.report.predicted import LEVEL
from bayesadam.tables.report.weighted import effective
from bayesadam.tables.runs.evaluation import Arrays
from bayesadam.tables.runs.predict_table import means

Matrix = NDArray[np.float64]
Predictive = Callable[[Matrix], Any]
"""A function that returns the predictive distribution of the rows of a matrix."""

FEWEST, ROWS, SHUFFLES, PREDICTIONS = 40, 300, 3, 6_000
"""Minimum and maximum number of rows whose inputs are shuffled, number of shuffles, and maximum of all predictions."""

SHOWN, GRID, BACKGROUND, CLASSES = 4, 10, 40, 4
"""Numbers of: inputs whose effects are shown, values of each input, rows that are averaged for each value, and
classes.
"""

GROUPED, PARTS, LEVELS, LEAST = 5, 4, 8, 10
"""Numbers of: inputs by whose values rows are grouped, groups of a number or date, and levels of a category; and the
minimum number of rows of a group.
"""

LARGEST_NLL = 30.0
"""Limit of the negative log-likelihood of a row, which is infinite for a class of probability zero."""

FEW_ROWS = 3
"""Minimum number of rows with a word whose effect is shown."""

BAND = 0.9
"""Probability content of the bands around the effects in a classification."""


def effects(
    inputs: pd.DataFrame,
    targets: NDArray[Any],
    matrix: Matrix,
    parts: Sequence[slice],
    predictive: Predictive,
    seed: int,
    *,
    weight: NDArray[np.float64] | None = None,
    classes: bool,
    texts: Collection[str] = (),
) -> dict[str, Any]:
    """Return the importance of the inputs, and the mean prediction by value of the most important ones.

    These are permutation importance and partial dependence. Columns of the matrix that encode one input are changed
    together, and whole predictive distributions are averaged, which scikit-learn's inspection does not do. The number
    of predictions is bounded: of many inputs, those that tell most of the target by themselves are examined.

    Args:
        inputs: Numbers, dates and texts of the rows, ``(N, D)``.
        targets: Values or indices of classes, ``(N,)``.
        matrix: The inputs as numbers, ``(N, K)``.
        parts: The columns of the matrix that belong to each input.
        predictive: Function that returns the predictive distribution of the rows of a matrix.
        seed: Seed of the choice of rows and of the shuffles.
        weight: Weights of the rows, ``(N,)``; with ``None`` they are equal.
        classes: Whether the targets are classes.
        texts: Names of the inputs that are texts, of which the effects of words are shown.

    Returns:
        "importance" has, for each input, the increase of the error when the input is shuffled ("gain"), and its
        standard deviation over the shuffles ("error").
        "dependence" has, for the most important inputs, the mean predictions if all rows had the same value.
    """
    generator = np.random.default_rng(seed)
    rows = generator.permutation(len(inputs))[:ROWS]
    chosen = _informative(matrix[rows], targets[rows], parts, seed, classes)
    rows = rows[: max(FEWEST, PREDICTIONS // (SHUFFLES * len(chosen)))]
    own_weight = None if weight is None else weight[rows]
    before = _loss(predictive(matrix[rows]), targets[rows], own_weight)
    importance: list[dict[str, Any]] = []
    for j in chosen:
        gains = []
        for _ in range(SHUFFLES):
            shuffled = matrix[rows]
            shuffled[:, parts[j]] = generator.permutation(shuffled[:, parts[j]])
            gains.append(_loss(predictive(shuffled), targets[rows], own_weight) - before)
        importance.append(
            {"name": str(inputs.columns[j]), "gain": float(np.mean(gains)), "error": float(np.std(gains))}
        )
    ranked = sorted(range(len(chosen)), key=lambda i: importance[i]["error"] - importance[i]["gain"])
    values = targets == np.bincount(targets).argmax() if classes else targets
    columns = {j: inputs.iloc[:, j] for j in (chosen[i] for i in ranked)}
    donors = {j: _words(c, values) if c.name in texts else _representative(c) for j, c in columns.items()}
    shown = [j for j, examples in donors.items() if len(examples) > 1][:SHOWN]
    behind = np.sort(rows[:BACKGROUND])
    background = matrix[behind], None if weight is None else weight[behind]
    dependence = [
        _dependence(inputs.iloc[:, j], donors[j], matrix[:, parts[j]], *background, parts[j], predictive) for j in shown
    ]
    return {"importance": [importance[i] for i in ranked], "dependence": dependence}


def _informative(matrix: Matrix, targets: NDArray[Any], parts: Sequence[slice], seed: int, classes: bool) -> list[int]:
    """Return places of the inputs with the largest mutual information with the target, as many as are affordable."""
    most = PREDICTIONS // (SHUFFLES * FEWEST)
    if len(parts) <= most:
        return list(range(len(parts)))
    measure = mutual_info_classif if classes else mutual_info_regression
    information = measure(matrix, targets, random_state=seed)
    best = [information[part].max() for part in parts]
    return sorted(np.argsort(best)[::-1][:most].tolist())


def _loss(pred: Any, targets: NDArray[Any], weight: NDArray[np.float64] | None) -> float:
    """Return the root mean squared error, or the mean negative log-likelihood, which is limited for each row."""
    if not hasattr(pred, "probs"):
        return float(np.sqrt(np.average((_array(means(pred)) - targets) ** 2, weights=weight)))
    density = pred.log_prob(torch.as_tensor(targets, device=pred.device)).clamp_min(-LARGEST_NLL)
    return -float(np.average(_array(density), weights=weight))


def _array(values: torch.Tensor) -> NDArray[np.float64]:
    return np.asarray(values.detach().double().cpu())


def _dependence(
    column: pd.Series,
    donors: dict[str, list[int]],
    values: Matrix,
    background: Matrix,
    weight: NDArray[np.float64] | None,
    part: slice,
    predictive: Predictive,
) -> dict[str, Any]:
    """Return predictions, averaged over the same rows, for the mean value of an input in some donors after others."""
    rows = np.repeat(background[None], len(donors), axis=0)
    rows[:, :, part] = np.stack([values[places].mean(0) for places in donors.values()])[:, None]
    pred, shape = predictive(rows.reshape(-1, rows.shape[-1])), rows.shape[:2]
    numbers = _numbers(column)
    entry = {
        "name": str(column.name),
        "kind": kind_of(column),
        "at": list(donors),
        "order": None if numbers is None else [float(numbers[first]) for first, *_ in donors.values()],
    }
    if not hasattr(pred, "probs"):
        mean, *variances = (
            np.average(_array(part).reshape(shape), axis=1, weights=weight)
            for part in (means(pred), pred.variance, pred.epistemic)
        )
        bands = [[(mean + sign * np.sqrt(variance)).tolist() for sign in (-2, 2)] for variance in variances]
        return entry | {"curves": [{"label": None, "mean": mean.tolist(), "bands": bands}]}
    draws = _array(pred.log_probs.exp())
    draws = np.average(draws.reshape(len(draws), *shape, -1), axis=2, weights=weight)  # (samples, values, classes)
    mean = draws.mean(0)
    low, high = np.quantile(draws, [0.5 - 0.5 * BAND, 0.5 + 0.5 * BAND], axis=0)
    frequent = np.argsort(-mean.mean(0), kind="stable")[:CLASSES].tolist() if mean.shape[1] > 2 else [1]
    curves = [
        {"label": c, "mean": mean[:, c].tolist(), "bands": [[low[:, c].tolist(), high[:, c].tolist()]]}
        for c in frequent
    ]
    return entry | {"curves": curves}


def kind_of(column: pd.Series) -> str:
    """Return "date", "number" or "category"."""
    if pd.api.types.is_datetime64_any_dtype(column):
        return "date"
    return "number" if pd.api.types.is_numeric_dtype(column) and column.dtype != bool else "category"


def _numbers(column: pd.Series) -> NDArray[np.float64] | None:
    """Return numbers, or dates as days, with NaN for missing values; ``None`` for a category."""
    kind = kind_of(column)
    if kind == "date":
        column = (column - pd.Timestamp(0)) / pd.Timedelta(days=1)
    return None if kind == "category" else np.asarray(column, dtype=np.float64)


def _representative(column: pd.Series) -> dict[str, list[int]]:
    """Return rows with quantiles of a number or date, or with the most frequent levels."""
    numbers = _numbers(column)
    if numbers is None:
        first = ~column.duplicated().to_numpy() & column.notna().to_numpy()
        counts = column.map(column.value_counts()).to_numpy(dtype=np.float64, na_value=0.0)
        frequent = sorted(np.flatnonzero(first).tolist(), key=lambda row: -counts[row])[:LEVELS]
        return {text_of(column.iloc[row]): [row] for row in frequent}
    present = np.flatnonzero(~np.isnan(numbers))
    ranked = present[np.argsort(numbers[present], kind="stable")]
    at = np.linspace(0.02, 0.98, GRID) * max(len(ranked) - 1, 0)
    chosen = ranked[at.round().astype(int)] if len(ranked) else ranked
    different = [int(chosen[i]) for i in np.unique(numbers[chosen], return_index=True)[1]]
    return {text_of(column.iloc[row]): [row] for row in different}


def _words(column: pd.Series, targets: NDArray[Any]) -> dict[str, list[int]]:
    """Return the words of texts, with their rows, whose targets differ most from those of all rows."""
    places: dict[str, list[int]] = {}
    for place, text in enumerate(column.fillna("")):
        for word in sorted(set(re.findall(r"[^\W\d_]{3,}", text.lower()))):
            places.setdefault(word, []).append(place)
    away, count = targets - targets.mean(), len(column)
    strength = {
        word: abs(float(away[rows].sum())) / math.sqrt(len(rows) * (count - len(rows)))
        for word, rows in places.items()
        if FEW_ROWS <= len(rows) <= count - FEW_ROWS
    }
    return {word: places[word] for word in sorted(strength, key=lambda word: -strength[word])[:LEVELS]}


def groups(inputs: pd.DataFrame, names: Sequence[str], predictions: Arrays) -> list[dict[str, Any]]:
    """Group rows by values of the first inputs, and count the right rows of each group, and their expected number.

    Args:
        inputs: Numbers, dates and texts of the rows, ``(N, D)``.
        names: Names of the inputs, the most important ones first.
        predictions: Predictions of these rows.
    """
    if "probs" in predictions:
        expected, right = predictions["probs"].max(1), predictions["probs"].argmax(1) == predictions["label"]
    else:
        y = predictions["y"]
        expected, right = np.full(len(y), LEVEL), (predictions["lower"] <= y) & (y <= predictions["upper"])
    weight, entries = predictions.get("weight"), []
    for name in names[:GROUPED]:
        for values, places in pd.Series(range(len(right))).groupby(_group_names(inputs[name]).to_numpy(), sort=False):
            if len(places) >= LEAST:
                share = None if weight is None else weight[places]
                count = effective(len(places), share)
                sums = {} if share is None else {"effective": count}
                for what, each in (("right", right), ("expected", expected)):
                    sums[what] = count * float(np.average(each[places], weights=share))
                entries.append({"name": name, "values": values, "rows": len(places), **sums})
    return entries


def _group_names(column: pd.Series) -> pd.Series:
    """Return the group of each row: a quarter of the values, or one of the most frequent levels, or "missing"."""
    if kind_of(column) == "category":
        names = column.map(text_of).where(column.isin(column.value_counts().index[:LEVELS]))
    else:
        quarter = pd.qcut(column, PARTS, labels=False, duplicates="drop")
        ends = column.groupby(quarter).agg(["min", "max"])
        names = quarter.map({number: f"{text_of(low)} to {text_of(high)}" for number, low, high in ends.itertuples()})
    return names.astype(object).mask(column.isna(), "missing")


def text_of(value: Any) -> str:
    """Return a value of the user's data as in a file: a year or a postcode has no separated thousands."""
    if pd.isna(value):
        return NONE
    if isinstance(value, pd.Timestamp):
        return str(value.date()) if value == value.normalize() else f"{value:%Y-%m-%d %H:%M}"
    if not isinstance(value, float) or not math.isfinite(value):  # the float64 of NumPy is a float
        return str(value)
    decimals = 0 if value.is_integer() else max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}" if decimals <= 10 else f"{value:.3e}"
    return text.rstrip("0").rstrip(".") if 0 < decimals <= 10 else text
