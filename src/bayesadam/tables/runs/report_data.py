"""The data of a report as plain numbers and texts, which a run stores so that the page can be made again."""

from __future__ import annotations

import itertools
import math
import platform
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayesadam.tables.encoder.column_types import Column, Number
from bayesadam.tables.encoder.encoder import Encoded
from bayesadam.tables.report.numbers import column, percent
from bayesadam.tables.report.write import VERSION
from bayesadam.tables.runs.evaluation import Arrays
from bayesadam.tables.runs.explain import FEWEST, effects, groups, kind_of, text_of
from bayesadam.tables.runs.prepare import Prepared
from bayesadam.tables.runs.settings import Settings, with_options

MAX_POINTS = 2_000
SURPRISES = 10
_LEVELS = 3
_PACKAGES = ("bayesadam", "torch", "numpy", "scikit-learn", "pyarrow")


def report_data(
    prepared: Prepared,
    settings: Settings,
    estimator: Any,
    held_out: Arrays,
    left_out: tuple[NDArray[np.int64], Arrays] | None,
    metrics: Mapping[str, Any],
    comparison: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """Return the data of the report for :func:`bayesadam.tables.report.write_report`.

    Args:
        prepared: The table.
        settings: Settings that repeat the fit. The data have no folders, because reports are shared.
        estimator: The fitted estimator.
        held_out: Predictions of the held-out rows.
        left_out: Indices of training rows, and their predictions by members that left them out.
        metrics: Scores by name of the model.
        comparison: Further entries of the data: those of :func:`bayesadam.tables.runs.evaluation.compared`, and
            "recipes", the code of the other models.
        seconds: Duration of each stage.
    """
    target, split, lines = prepared.target, prepared.split, prepared.rows + prepared.file.first_line
    notes, explained = prepared.notes, {}
    unseen, unseen_rows = held_out, split.held_out
    if left_out is not None:
        unseen_rows = np.concatenate([split.held_out, left_out[0]])
        unseen = {name: np.concatenate([values, left_out[1][name]]) for name, values in held_out.items()}
    try:
        explained = _explained(prepared, estimator, settings.seed, unseen_rows, unseen)
    except Exception as error:  # no finished fit is lost for a part of the report
        notes.append(f"the report does not describe the inputs: {type(error).__name__}: {error}")
    return {
        "version": VERSION,
        "task": target.task,
        "target": target.name,
        "unit": target.unit,
        "cautions": [with_options(caution) for caution in target.cautions],
        "classes": [str(label) for label in target.classes],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {
            "file": prepared.file.name,
            "place": prepared.file.unit,
            "rows": len(prepared.y),
            "train_rows": len(split.training),
            "held_out_rows": len(split.held_out),
            "held_out_how": split.how,
            "columns": [_described(prepared.inputs[column.name], column) for column in prepared.encoder.columns_],
            "left_out": {name: with_options(why) for name, why in prepared.left_out.items()},
            "notes": [with_options(note) for note in notes],
        },
        "metrics": {name: dict(values) for name, values in metrics.items()},
        **comparison,
        "held_out": _thinned(held_out, lines[split.held_out], settings.seed),
        "unseen": None if left_out is None else _thinned(unseen, lines[unseen_rows], settings.seed),
        "explained": _plain(explained),
        "epistemic_error": float(estimator.calibration_["error"][0]) if "error" in estimator.calibration_ else None,
        "surprises": _surprises(prepared, held_out, lines),
        "reproduce": {
            "config": _plain(vars(replace(settings, data=prepared.file.name))),
            "seconds": dict(seconds),
            "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        },
    }


def _explained(
    prepared: Prepared, estimator: Any, seed: int, unseen_rows: NDArray[np.int64], unseen: Arrays
) -> dict[str, Any]:
    """Return the effects of the inputs, computed on the held-out rows, or on all rows if those are too few, and groups
    of the unseen rows; an empty dictionary if all rows are too few.
    """
    few = len(prepared.split.held_out) < FEWEST
    rows = np.arange(len(prepared.y)) if few else prepared.split.held_out
    if len(rows) < FEWEST:
        return {}
    ends = np.cumsum([0, *(len(column.features) for column in prepared.encoder.columns_)])
    explained = effects(
        prepared.inputs.iloc[rows],
        prepared.y[rows],
        prepared.matrix[rows],
        [slice(start, end) for start, end in itertools.pairwise(ends.tolist())],
        lambda matrix: estimator.predictive(Encoded(matrix)),
        seed,
        weight=prepared.weights_of(rows),
        classes=len(prepared.target.classes) > 0,
        texts=[column.name for column in prepared.encoder.columns_ if column.kind == "text"],
    )
    names = [entry["name"] for entry in explained["importance"]]
    explained["groups"] = groups(prepared.inputs.iloc[unseen_rows], names, unseen)
    return explained | {"about": f"Computed on {'all' if few else 'the held-out'} rows."}


def _thinned(predictions: dict[str, Any], lines: NDArray[np.int64], seed: int) -> dict[str, Any]:
    """Return the predictions of at most ``MAX_POINTS`` rows, with the rows' numbers in the file; if they are drawn at
    random, "drawn_from" is the number of all rows.
    """
    shown = np.sort(np.random.default_rng(seed).permutation(len(lines))[:MAX_POINTS])
    columns: dict[str, NDArray[Any]] = predictions | {"row": lines}
    if "label" in columns:
        columns["label"] = columns["label"].astype(np.int64)
    drawn_from = len(lines) if len(shown) < len(lines) else None
    return {"drawn_from": drawn_from, **{name: _plain(values[shown].tolist()) for name, values in columns.items()}}


def _described(values: pd.Series, column: Column) -> dict[str, Any]:
    """Describe an input by its "name", "kind", "missing" (share of the rows) and "summary"."""
    shown = f"{column.kind} ({column.unit})" if isinstance(column, Number) and column.unit else column.kind
    present, kind = values.dropna(), kind_of(values)
    if kind == "date":
        summary = f"{text_of(present.min())} to {text_of(present.max())}"
    elif kind == "number":
        numbers = present.to_numpy(dtype=np.float64)
        low, middle, high = (text_of(float(part(numbers))) for part in (np.min, np.median, np.max))
        summary = f"{low} to {high}, median {middle}"
    else:
        counts = present.value_counts()
        levels = [f"{text_of(level)} ({percent(count / len(present))})" for level, count in counts[:_LEVELS].items()]
        summary = f"{len(counts)} {'texts' if column.kind == 'text' else 'levels'}: {', '.join(levels)}"
    return {"name": str(values.name), "kind": shown, "missing": float(values.isna().mean()), "summary": summary}


def _surprises(prepared: Prepared, predictions: Arrays, lines: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the held-out rows to which the model gave the lowest probability: of a class below a half."""
    worst, classes = np.argsort(-predictions["nll"], kind="stable")[:SURPRISES], prepared.target.classes
    if classes:
        worst = worst[predictions["nll"][worst] > math.log(2.0)]
        probs = predictions["probs"][worst]
        labels = predictions["label"][worst].astype(int)
        actual = [f"{classes[label]} ({percent(row[label], 1)})" for label, row in zip(labels, probs, strict=True)]
        predicted = [f"{classes[int(row.argmax())]} ({percent(row.max(), 1)})" for row in probs]
    else:
        parts = [predictions[name][worst] for name in ("y", "mean", "lower", "upper")]
        texts = np.array(column(np.concatenate(parts))).reshape(4, -1)
        actual = texts[0].tolist()
        predicted = [f"{mean} ({low} to {high})" for mean, low, high in texts[1:].T]
    surprises = []
    for place, row in enumerate(prepared.split.held_out[worst]):
        values = {str(name): text_of(value) for name, value in prepared.inputs.iloc[int(row)].items()}
        surprises.append({"row": int(lines[row]), "values": values, "y": actual[place], "predicted": predicted[place]})
    return surprises


def _plain(value: Any) -> Any:
    """Convert a value to JSON values, in which numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
