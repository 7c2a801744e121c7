"""Importance and effects of inputs, and coverage by values of the inputs, computed on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from bayesadam.sklearn.runs.evaluation import Arrays
from bayesadam.sklearn.tables.column_types import Column, Number
from bayesadam.sklearn.tables.csv_numbers import numbers_in
from bayesadam.sklearn.tables.dates import Date, as_times
from bayesadam.sklearn.tables.encoder import Encoded

ROWS, FEWEST, PREDICTIONS = 300, 40, 6_000
"""Maximum and minimum number of rows whose inputs are permuted, and maximum of rows times inputs."""

SHOWN, GRID, BACKGROUND, CLASSES = 3, 12, 50, 4
"""Numbers of: inputs whose effects are shown, values of each input, rows that are averaged for each value, and
classes.
"""

SLICED, PARTS, LEVELS, LEAST = 5, 4, 8, 10
"""Numbers of: inputs by whose values coverage is shown, parts of a numeric input, and levels of a category; and the
minimum number of rows of a part.
"""

LEVEL = 0.9
"""Probability content of the bands around the effects in a classification."""


@dataclass(frozen=True)
class Input:
    """A column of the table in the held-out rows.

    Attributes:
        name: Name of the column.
        features: The columns of the matrix that belong to it.
        order: Numbers by which the rows are sorted, NaN for missing values; for categories, codes in order of
            frequency.
        texts: The values as text.
        level: Whether the column is a category, whose values have no order.
    """

    name: str
    features: slice
    order: NDArray[np.float64]
    texts: list[str]
    level: bool

    @property
    def donors(self) -> list[int]:
        """Indices of rows with representative values: quantiles, or the most frequent levels."""
        known = np.flatnonzero(~np.isnan(self.order))
        if self.level:
            found = [int(known[self.order[known] == code][0]) for code in np.unique(self.order[known])]
            return found[:LEVELS]
        ranked = known[np.argsort(self.order[known], kind="stable")]
        at = np.linspace(0.02, 0.98, GRID) * (len(ranked) - 1)
        chosen = ranked[at.round().astype(int)] if len(ranked) else ranked
        return [int(chosen[i]) for i in np.unique(self.order[chosen], return_index=True)[1]]


def explain(estimator: Any, encoded: Encoded, table: pa.Table, held_out: Arrays, seed: int) -> dict[str, Any]:
    """Return what the report shows about the inputs. The amount of work is bounded for any table.

    Args:
        estimator: The fitted estimator.
        encoded: Matrix of the held-out rows, ``(N, D)``, with its encoder.
        table: The held-out rows.
        held_out: Predictions of the held-out rows.
        seed: Seed of the choice of rows and of the permutation.

    Returns:
        A dictionary, which is empty for fewer than ``FEWEST`` rows. "importance" has, for each input, the increase of
        the NLL when the input takes the values of other rows ("nll" with the standard error "error", in nats), and the
        mean absolute change of the log standard deviation or of the entropy ("spread"). "dependence" has, for the most
        important inputs, the mean predictions if all rows had the same value. "slices" has, by values of the most
        important inputs, the numbers of intervals or predicted classes that are right.
    """
    matrix = encoded.matrix
    if len(matrix) < FEWEST:
        return {}
    assert encoded.encoder is not None
    generator = np.random.default_rng(seed)
    inputs = _most_related(_inputs(encoded.encoder.columns_, table), matrix, held_out, PREDICTIONS // FEWEST)
    importance = _importance(estimator, inputs, matrix, held_out, generator)
    ranked = sorted(range(len(inputs)), key=lambda i: -_weight(importance[i]))
    background = np.sort(generator.permutation(len(matrix))[:BACKGROUND])
    return {
        "rows": len(matrix),
        "importance": [importance[i] for i in ranked],
        "dependence": [_dependence(estimator, inputs[i], matrix, background, held_out) for i in ranked[:SHOWN]],
        "slices": [part for i in ranked[:SLICED] for part in _slices(inputs[i], held_out)],
    }


def _weight(entry: dict[str, Any]) -> float:
    """Return the score of an input: importance less two standard errors, plus a tenth of its effect on uncertainty."""
    return float(entry["nll"] - 2.0 * entry["error"]) + 0.1 * float(entry["spread"])


def _inputs(columns: Sequence[Column], table: pa.Table) -> list[Input]:
    stops = np.cumsum([len(column.features) for column in columns]).tolist()
    starts = [0, *stops]
    return [
        _input(column, slice(start, stop), table.column(column.name))
        for column, start, stop in zip(columns, starts, stops, strict=False)
    ]


def _input(column: Column, features: slice, values: pa.ChunkedArray) -> Input:
    texts = ["missing" if value is None else str(value) for value in values.to_pylist()]
    if isinstance(column, Number):
        order = numbers_in(values, column.decimal, column.unit)
        return Input(column.name, features, order, [f"{value:.6g}" for value in order], False)
    if isinstance(column, Date):
        times = as_times(values, column.order)
        days = np.where(np.isnat(times), np.nan, times.astype("datetime64[us]").astype(np.int64) / 86_400e6)
        return Input(column.name, features, days, texts, False)
    names, codes, counts = np.unique(np.array(texts, dtype=str), return_inverse=True, return_counts=True)
    rank = np.empty(len(names))
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(names))
    return Input(column.name, features, rank[codes.reshape(-1)], texts, True)


def _most_related(found: list[Input], inputs: NDArray[np.float64], held_out: Arrays, most: int) -> list[Input]:
    """Return at most ``most`` inputs: those with the largest linear correlation with the predictions."""
    if len(found) <= most:
        return found
    predicted = held_out["mean"][:, None] if "mean" in held_out else held_out["probs"]
    white = predicted - predicted.mean(0)
    centered = inputs - inputs.mean(0)
    size = np.maximum(np.sqrt((centered**2).sum(0)), 1e-12)
    related = np.abs((white / np.maximum(np.linalg.norm(white, axis=0), 1e-12)).T @ (centered / size)).max(0)
    order = np.argsort([-related[own.features].max() for own in found], kind="stable")[:most]
    return [found[i] for i in sorted(order.tolist())]


def _importance(
    estimator: Any, found: list[Input], inputs: NDArray[np.float64], held_out: Arrays, generator: np.random.Generator
) -> list[dict[str, Any]]:
    """Compute the effect of permuting each input in turn, by a cyclic permutation of rows in random order."""
    count = min(len(inputs), ROWS, max(FEWEST, PREDICTIONS // len(found)))
    rows = generator.permutation(len(inputs))[:count]
    x, target = inputs[rows], held_out["y" if "y" in held_out else "label"][rows]
    copies = np.repeat(x[None], len(found), axis=0)
    for own, copy in zip(found, copies, strict=True):
        copy[:, own.features] = np.roll(x[:, own.features], 1, axis=0)
    nll, spread = _scores(estimator.predictive(Encoded(copies.reshape(-1, x.shape[1]))), np.tile(target, len(found)))
    before = held_out["nll"][rows], _spread(held_out, rows)
    entries = []
    for own, more, change in zip(found, nll.reshape(-1, count), spread.reshape(-1, count), strict=True):
        gain, change = more - before[0], np.abs(change - before[1])
        gain = gain[np.isfinite(gain)]
        error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else 0.0
        mean = float(gain.mean()) if len(gain) else 0.0
        entries.append({"name": own.name, "nll": mean, "error": error, "spread": float(change.mean())})
    return entries


def _scores(pred: Any, target: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the NLL, and the log standard deviation or the entropy, of every row."""
    if hasattr(pred, "probs"):
        values = -pred.log_prob(torch.as_tensor(target.astype(np.int64), device=pred.device)), pred.entropy
    else:
        y = torch.as_tensor(target, dtype=pred.mean.dtype, device=pred.device)
        values = -pred.log_prob(y), 0.5 * pred.variance.log()
    nll, spread = (value.double().cpu().numpy() for value in values)
    return nll, spread


def _spread(held_out: Arrays, rows: NDArray[Any]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = held_out["entropy"][rows] if "probs" in held_out else np.log(held_out["std"][rows])
    return found


def _dependence(
    estimator: Any, own: Input, inputs: NDArray[np.float64], rows: NDArray[np.int64], held_out: Arrays
) -> dict[str, Any]:
    """Return predictions, averaged over the same rows, for one value of an input after another."""
    donors = own.donors
    copies = np.repeat(inputs[rows][None], len(donors), axis=0)
    copies[:, :, own.features] = inputs[donors][:, None, own.features]
    pred = estimator.predictive(Encoded(copies.reshape(-1, inputs.shape[1])))
    shape = (len(donors), len(rows))
    shown: dict[str, Any] = {"name": own.name, "at": [own.texts[donor] for donor in donors]}
    shown["order"] = None if own.level else [float(own.order[donor]) for donor in donors]
    if not hasattr(pred, "probs"):
        mean, epistemic, total = (
            values.double().cpu().reshape(shape).mean(1) for values in (pred.mean, pred.epistemic, pred.variance)
        )
        return shown | {"mean": mean.tolist(), "epistemic": epistemic.sqrt().tolist(), "std": total.sqrt().tolist()}
    draws = pred.log_probs.double().cpu().exp()
    draws = draws.reshape(len(draws), *shape, -1).mean(2)  # (samples, values, classes)
    ends = torch.quantile(draws, torch.tensor([0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL], dtype=torch.float64), dim=0)
    frequent = np.argsort(-held_out["probs"].mean(0), kind="stable")[:CLASSES].tolist()
    if draws.shape[2] == 2:
        frequent = [1]
    curves = [
        {
            "label": c,
            "mean": draws.mean(0)[:, c].tolist(),
            "low": ends[0, :, c].tolist(),
            "high": ends[1, :, c].tolist(),
        }
        for c in frequent
    ]
    return shown | {"classes": curves}


def _slices(own: Input, held_out: Arrays) -> list[dict[str, Any]]:
    """Divide the rows by values of an input, and count the right rows of each part, and their expected number."""
    missing = np.isnan(own.order)
    parts = {"missing": missing}
    if own.level:
        parts |= {own.texts[donor]: own.order == own.order[donor] for donor in own.donors}
    else:
        known = own.order[~missing]
        edges = np.unique(np.quantile(known, np.linspace(0, 1, PARTS + 1))) if len(known) else np.zeros(0)
        for i in range(len(edges) - 1):
            last = i + 2 == len(edges)
            inside = (own.order >= edges[i]) & ((own.order <= edges[i + 1]) if last else (own.order < edges[i + 1]))
            if inside.any():
                rows = np.flatnonzero(inside)
                ends = (rows[np.argmin(own.order[rows])], rows[np.argmax(own.order[rows])])
                parts[" to ".join(own.texts[row] for row in ends)] = inside
    found = []
    for text, rows in parts.items():
        if rows.sum() < LEAST:
            continue
        entry: dict[str, Any] = {"name": own.name, "values": text, "rows": int(rows.sum())}
        if "probs" in held_out:
            sure = held_out["probs"][rows].max(1)
            right = held_out["probs"][rows].argmax(1) == held_out["label"][rows]
            entry |= {"right": int(right.sum()), "expected": float(sure.sum())}
            entry["variance"] = float((sure * (1.0 - sure)).sum())
        else:
            y = held_out["y"][rows]
            entry["right"] = int(((held_out["lower"][rows] <= y) & (y <= held_out["upper"][rows])).sum())
        found.append(entry)
    return found
