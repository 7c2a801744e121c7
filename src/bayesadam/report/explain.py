"""Importance and effects of inputs, and coverage by values of the inputs, on rows that the networks have not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression
from sklearn.inspection import partial_dependence, permutation_importance

from bayesadam.report.numbers import data_value

Columns = Mapping[str, NDArray[np.float64]]
"""Predictions of rows by name, as :func:`bayesadam.report.predicted.predicted` reads them."""

Donors = NDArray[np.int64]
"""Rows that are made of other rows, ``(n, D)``: entry ``i, j`` is the row from which row ``i`` has its column ``j``."""

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

LEVEL = 0.9
"""Probability content of the bands around the effects in a classification."""


def effects(
    inputs: pd.DataFrame, targets: NDArray[Any], predictive: Callable[[Donors], Any], seed: int, *, classes: bool
) -> dict[str, Any]:
    """Return the importance of the inputs, and the mean prediction by value of the most important ones.

    The number of predictions is bounded: of many inputs, those that tell most of the target by themselves are examined.

    Args:
        inputs: Numbers, dates and texts of the rows, ``(N, D)``.
        targets: Values or indices of classes, ``(N,)``.
        predictive: Function that returns the predictive distribution of rows that are made of these rows.
        seed: Seed of the choice of rows and of the shuffles.
        classes: Whether the targets are classes.

    Returns:
        "importance" has, for each input, the increase of the error when the input is shuffled ("gain"), and its
        standard deviation over the shuffles ("error").
        "dependence" has, for the most important inputs, the mean predictions if all rows had the same value.
    """
    rows = np.random.default_rng(seed).permutation(len(inputs))[:ROWS]
    chosen = _informative(inputs.iloc[rows], targets[rows], seed, classes)

    def of_chosen(donors: Donors) -> Any:
        """Return predictions of rows with the chosen columns of other rows; the last donor has all other columns."""
        whole = np.repeat(donors[:, -1:], len(inputs.columns), axis=1)
        whole[:, chosen] = donors[:, :-1]
        return predictive(whole)

    columns = [inputs.iloc[:, j] for j in chosen]
    names = [str(column.name) for column in columns]
    importance = _importance(names, targets, of_chosen, rows, seed)
    ranked = sorted(range(len(chosen)), key=lambda j: importance[j]["error"] - importance[j]["gain"])
    background = _donors(np.sort(rows[:BACKGROUND]), len(chosen))
    donors = [_representative(column) for column in columns]
    shown = [j for j in ranked if len(donors[j]) > 1][:SHOWN]
    dependence = [_dependence(columns[j], j, donors[j], of_chosen, background) for j in shown]
    return {"importance": [importance[j] for j in ranked], "dependence": dependence}


def _informative(inputs: pd.DataFrame, targets: NDArray[Any], seed: int, classes: bool) -> list[int]:
    """Return places of the inputs with the largest mutual information with the target, as many as are affordable."""
    most = PREDICTIONS // (SHUFFLES * FEWEST)
    if len(inputs.columns) <= most:
        return list(range(len(inputs.columns)))
    discrete = np.array([_kind(inputs.iloc[:, j]) == "category" for j in range(len(inputs.columns))])
    codes = []
    for j in range(len(discrete)):
        numbers = _numbers(inputs.iloc[:, j])
        values = pd.factorize(inputs.iloc[:, j])[0] if numbers is None else pd.Series(numbers).rank().fillna(0.0)
        codes.append(np.asarray(values, dtype=np.float64))
    measure = mutual_info_classif if classes else mutual_info_regression
    found = measure(np.stack(codes, axis=1), targets, discrete_features=discrete, random_state=seed)
    return sorted(np.argsort(-found, kind="stable")[:most].tolist())


def _donors(rows: NDArray[np.int64], columns: int) -> NDArray[np.float64]:
    """Return donors for rows as they are."""
    return np.repeat(rows[:, None], columns + 1, axis=1).astype(np.float64)


class _Outputs(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Predictions of rows that are made of other rows, in the form that scikit-learn's inspection expects."""

    def __init__(self, outputs: Callable[[Donors], Any]) -> None:
        self.outputs = outputs

    def fit(self, X: Any, y: Any = None) -> _Outputs:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Any) -> Any:
        return self.outputs(np.asarray(X).astype(np.int64))


def _importance(
    names: Sequence[str],
    targets: NDArray[Any],
    predictive: Callable[[Donors], Any],
    order: NDArray[np.int64],
    seed: int,
) -> list[dict[str, Any]]:
    rows = order[: max(FEWEST, PREDICTIONS // (SHUFFLES * len(names)))]

    def score(model: _Outputs, donors: Any, own: NDArray[Any]) -> float:
        return -_loss(model.predict(donors), own)

    found = permutation_importance(
        _Outputs(predictive),
        _donors(rows, len(names)),
        targets[rows],
        scoring=score,
        n_repeats=SHUFFLES,
        random_state=seed,
    )
    columns = zip(names, found["importances_mean"], found["importances_std"], strict=False)  # not of the last
    return [{"name": name, "gain": float(gain), "error": float(error)} for name, gain, error in columns]


def _loss(found: Any, targets: NDArray[Any]) -> float:
    """Return the root mean squared error, or the mean negative log-likelihood, which is limited for each row."""
    if not hasattr(found, "probs"):
        return float(np.sqrt(np.mean((_array(found.mean) - targets) ** 2)))
    return -float(found.log_prob(torch.as_tensor(targets, device=found.device)).clamp_min(-LARGEST_NLL).mean())


def _array(values: torch.Tensor) -> NDArray[np.float64]:
    return np.asarray(values.detach().double().cpu())


def _dependence(
    column: pd.Series,
    j: int,
    donors: list[int],
    predictive: Callable[[Donors], Any],
    background: NDArray[np.float64],
) -> dict[str, Any]:
    """Return predictions, averaged over the same rows, for the value of an input in one donor after another."""
    values = np.array(donors, dtype=np.float64)
    classes: set[int] = set()

    def outputs(rows: Donors) -> NDArray[np.float64]:
        found = predictive(rows)
        if not hasattr(found, "probs"):
            return np.stack([_array(found.mean), _array(found.variance), _array(found.epistemic)], axis=1)
        classes.add(found.probs.shape[1])
        return _array(found.log_probs.exp().movedim(0, 1).flatten(1))  # (n, samples times classes)

    average = partial_dependence(_Outputs(outputs), background, [j], custom_values={j: values}, kind="average")
    numbers = _numbers(column)
    entry = {
        "name": str(column.name),
        "kind": _kind(column),
        "at": [text_of(column.iloc[donor]) for donor in donors],
        "order": None if numbers is None else numbers[donors].tolist(),
    }
    if not classes:
        mean, *variances = average["average"]
        bands = [[(mean + sign * np.sqrt(variance)).tolist() for sign in (-2, 2)] for variance in variances]
        return entry | {"curves": [{"label": None, "mean": mean.tolist(), "bands": bands}]}
    draws = average["average"].reshape(-1, classes.pop(), len(values))  # (samples, classes, values)
    mean = draws.mean(0)
    ends = np.quantile(draws, [0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL], axis=0)
    frequent = np.argsort(-mean.mean(1), kind="stable")[:CLASSES].tolist() if len(mean) > 2 else [1]
    curves = [{"label": c, "mean": mean[c].tolist(), "bands": [ends[:, c].tolist()]} for c in frequent]
    return entry | {"curves": curves}


def _kind(column: pd.Series) -> str:
    if pd.api.types.is_datetime64_any_dtype(column):
        return "date"
    return "number" if pd.api.types.is_numeric_dtype(column) and column.dtype != bool else "category"


def _numbers(column: pd.Series) -> NDArray[np.float64] | None:
    """Return numbers, or dates as days, with NaN for missing values; ``None`` for a category."""
    kind = _kind(column)
    if kind == "date":
        column = (column - pd.Timestamp(0)) / pd.Timedelta(days=1)
    return None if kind == "category" else np.asarray(column, dtype=np.float64)


def _representative(column: pd.Series) -> list[int]:
    """Return rows with quantiles of a number or date, or with the most frequent levels."""
    numbers = _numbers(column)
    if numbers is None:
        first = ~column.duplicated().to_numpy() & column.notna().to_numpy()
        counts = column.map(column.value_counts()).to_numpy(dtype=np.float64, na_value=0.0)
        return sorted(np.flatnonzero(first).tolist(), key=lambda row: -counts[row])[:LEVELS]
    known = np.flatnonzero(~np.isnan(numbers))
    ranked = known[np.argsort(numbers[known], kind="stable")]
    at = np.linspace(0.02, 0.98, GRID) * max(len(ranked) - 1, 0)
    chosen = ranked[at.round().astype(int)] if len(ranked) else ranked
    return [int(chosen[i]) for i in np.unique(numbers[chosen], return_index=True)[1]]


def groups(inputs: pd.DataFrame, names: Sequence[str], predictions: Columns) -> list[dict[str, Any]]:
    """Group rows by values of the first inputs, and count the right rows of each group, and their expected number.

    Args:
        inputs: Numbers, dates and texts of the rows, ``(N, D)``.
        names: Names of the inputs, the most important ones first.
        predictions: Predictions of these rows.
    """
    found = []
    for name in names[:GROUPED]:
        for values, rows in _parts(inputs[name]).items():
            if rows.sum() < LEAST:
                continue
            entry: dict[str, Any] = {"name": name, "values": values, "rows": int(rows.sum())}
            if "probs" in predictions:
                probs = predictions["probs"][rows]
                sure, right = probs.max(1), probs.argmax(1) == predictions["label"][rows]
                entry |= {"expected": float(sure.sum()), "variance": float((sure * (1.0 - sure)).sum())}
            else:
                y = predictions["y"][rows]
                right = (predictions["lower"][rows] <= y) & (y <= predictions["upper"][rows])
            found.append(entry | {"right": int(right.sum())})
    return found


def _parts(column: pd.Series) -> dict[str, NDArray[np.bool_]]:
    """Return masks of the rows by values of a column: quarters, or the most frequent levels, and missing values."""
    parts = {"missing": column.isna().to_numpy()}
    if _kind(column) == "category":
        levels = [column.iloc[row] for row in _representative(column)]
        return parts | {text_of(level): (column == level).to_numpy(dtype=bool, na_value=False) for level in levels}
    if column.notna().any():
        quarter = pd.qcut(column, PARTS, labels=False, duplicates="drop")
        for number, own in column.groupby(quarter):
            parts[f"{text_of(own.min())} to {text_of(own.max())}"] = (quarter == number).to_numpy()
    return parts


def text_of(value: Any) -> str:
    """Return a value of the user's data as text; dates have one form, and codes such as postcodes all their digits."""
    if isinstance(value, pd.Timestamp):
        return str(value.date()) if value == value.normalize() else f"{value:%Y-%m-%d %H:%M}"
    if value is pd.NA or value is None:
        return data_value(None)
    return data_value(value.item() if isinstance(value, np.generic) else value)
