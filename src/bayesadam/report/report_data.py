"""The data of a report as plain numbers and texts, which a run stores so that the page can be made again."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayesadam.report.explain import FEWEST, Columns, Donors, effects, groups, text_of
from bayesadam.report.numbers import column, percent
from bayesadam.report.write import VERSION

MAX_POINTS = 2_000
SURPRISES = 10
_LEVELS = 3
_PACKAGES = ("bayesadam", "torch", "numpy", "scikit-learn", "pyarrow")


@dataclass(frozen=True)
class Rows:
    """The rows of a table that were used for a fit.

    Attributes:
        inputs: Numbers, dates (``datetime64``) and texts, ``(N, D)``.
        targets: Values or indices of classes, ``(N,)``.
        lines: Number of each row in the file, ``(N,)``.
        held_out: Indices of the held-out rows.
        target: Name of the target.
        classes: Labels of the classes; empty for a regression.
    """

    inputs: pd.DataFrame
    targets: NDArray[Any]
    lines: NDArray[np.int64]
    held_out: NDArray[np.int64]
    target: str
    classes: Sequence[Any]


def report_data(
    rows: Rows,
    predictions: dict[str, NDArray[np.float64]],
    left_out: tuple[NDArray[np.int64], Columns] | None,
    predictive: Callable[[Donors], Any],
    *,
    seed: int,
    about: Mapping[str, Any],
    notes: Sequence[str],
    metrics: Mapping[str, Any],
    margins: Mapping[str, Any],
    reproduce: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the data of the report for :func:`bayesadam.report.write_report`.

    Args:
        rows: The rows.
        predictions: Predictions of the held-out rows.
        left_out: Indices of training rows, and their predictions by networks that have not seen them.
        predictive: Function that returns the predictive distribution of rows that are made of the rows of the table.
        seed: Seed of the choice of rows and of the shuffles.
        about: Facts: "file" (its name), "held_out_how", "left_out" (reasons by column), and "epistemic_error".
        notes: Notes on the data and on the fit.
        metrics: Scores by name of the model.
        margins: NLL of each other model minus that of the estimator, and the standard error of the difference.
        reproduce: "config" and "seconds". They must not contain folders, because reports are shared.
    """
    notes, explained = list(notes), {}
    unseen, unseen_rows = predictions, rows.held_out
    if left_out is not None:
        unseen_rows = np.concatenate([rows.held_out, left_out[0]])
        unseen = {name: np.concatenate([values, left_out[1][name]]) for name, values in predictions.items()}
    try:
        few = len(rows.held_out) < FEWEST
        shown = np.arange(len(rows.targets)) if few else rows.held_out
        if len(shown) >= FEWEST and len(rows.inputs.columns):
            explained = effects(
                rows.inputs.iloc[shown],
                rows.targets[shown],
                lambda donors: predictive(shown[donors]),
                seed,
                classes=len(rows.classes) > 0,
            )
            explained["about"] = f"Computed on {'all' if few else 'the held-out'} rows."
            names = [entry["name"] for entry in explained["importance"]]
            explained["groups"] = groups(rows.inputs.iloc[unseen_rows], names, unseen)
    except Exception as error:  # no finished fit is lost for a part of the report
        notes.append(f"the report does not describe the inputs: {type(error).__name__}: {error}")
    return {
        "version": VERSION,
        "title": rows.target,
        "task": "classification" if len(rows.classes) else "regression",
        "target": rows.target,
        "classes": [str(label) for label in rows.classes],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {
            "file": about["file"],
            "rows": len(rows.targets),
            "train_rows": len(rows.targets) - len(rows.held_out),
            "held_out_rows": len(rows.held_out),
            "held_out_how": about["held_out_how"],
            "columns": [_described(rows.inputs[name]) for name in rows.inputs],
            "left_out": dict(about["left_out"]),
            "notes": notes,
        },
        "metrics": {name: dict(values) for name, values in metrics.items()},
        "margins": dict(margins),
        "held_out": _thinned(predictions, rows.lines[rows.held_out], seed),
        "unseen": None if left_out is None else _thinned(unseen, rows.lines[unseen_rows], seed),
        "explained": _plain(explained),
        "epistemic_error": about.get("epistemic_error"),
        "surprises": _surprises(rows, predictions),
        "reproduce": {
            **_plain(reproduce),
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        },
    }


def _thinned(predictions: dict[str, Any], lines: NDArray[np.int64], seed: int) -> dict[str, Any]:
    """Return the predictions of at most ``MAX_POINTS`` rows, drawn at random, with the rows' numbers in the file."""
    shown = np.sort(np.random.default_rng(seed).permutation(len(lines))[:MAX_POINTS])
    columns: dict[str, NDArray[Any]] = predictions | {"row": lines}
    if "label" in columns:
        columns["label"] = columns["label"].astype(np.int64)
    return {name: _plain(values[shown].tolist()) for name, values in columns.items()}


def _described(values: pd.Series) -> dict[str, Any]:
    """Describe an input by its "name", "kind", "missing" (share of the rows) and "summary"."""
    known = values.dropna()
    kind = "category"
    if pd.api.types.is_datetime64_any_dtype(values):
        kind, summary = "date", f"{text_of(known.min())} to {text_of(known.max())}"
    elif pd.api.types.is_numeric_dtype(values) and values.dtype != bool:
        kind = "number"
        low, middle, high = (text_of(float(value)) for value in known.quantile([0.0, 0.5, 1.0]))
        summary = f"{low} to {high}, median {middle}"
    else:
        counts = known.value_counts()
        shown = [f"{text_of(level)} ({percent(count / len(known))})" for level, count in counts[:_LEVELS].items()]
        summary = f"{len(counts)} levels: {', '.join(shown)}"
    return {"name": str(values.name), "kind": kind, "missing": float(values.isna().mean()), "summary": summary}


def _surprises(rows: Rows, predictions: Columns) -> list[dict[str, Any]]:
    """Return the held-out rows to which the model gave the lowest probability: of a class below a half."""
    worst = np.argsort(-predictions["nll"], kind="stable")[:SURPRISES]
    if len(rows.classes):
        worst = worst[predictions["nll"][worst] > math.log(2.0)]
    if len(rows.classes):
        probs = predictions["probs"][worst]
        labels = predictions["label"][worst].astype(int)
        actual = [f"{rows.classes[label]} ({percent(row[label], 1)})" for label, row in zip(labels, probs, strict=True)]
        predicted = [f"{rows.classes[int(row.argmax())]} ({percent(row.max(), 1)})" for row in probs]
    else:
        parts = [predictions[name][worst] for name in ("y", "mean", "lower", "upper")]
        texts = np.array(column(np.concatenate(parts))).reshape(4, -1)
        actual = texts[0].tolist()
        predicted = [f"{mean} ({low} to {high})" for mean, low, high in texts[1:].T]
    found = []
    for place, row in enumerate(rows.held_out[worst]):
        values = {str(name): text_of(value) for name, value in rows.inputs.iloc[int(row)].items()}
        found.append({"row": int(rows.lines[row]), "values": values, "y": actual[place], "predicted": predicted[place]})
    return found


def _plain(value: Any) -> Any:
    """Convert a value to JSON values, in which numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
