"""The contents of the report as plain numbers and texts, which a run stores so that the page can be made again."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesadam.runs.drivers import drivers
from bayesadam.runs.held_out import Arrays
from bayesadam.runs.prepare import Prepared
from bayesadam.runs.scores import Scores
from bayesadam.runs.settings import Settings
from bayesadam.runs.watcher import Watcher
from bayesadam.runs.weights import weights

VERSION = 1
MAX_POINTS = 5_000
MAX_EPOCHS = 300
SURPRISES = 20
_BINS = 40
_PACKAGES = ("bayesadam", "torch", "numpy", "scikit-learn", "pyarrow")


def contents(
    prepared: Prepared,
    settings: Settings,
    estimator: Any,
    held_out: Arrays,
    inputs: NDArray[np.float32],
    metrics: Mapping[str, Scores],
    margins: Mapping[str, list[float] | None],
    seconds: Mapping[str, float],
    watcher: Watcher,
    out: Path,
) -> dict[str, Any]:
    """Return the data of the report for :func:`bayesadam.report.write_report`.

    Args:
        prepared: The data.
        settings: Settings of the fit.
        estimator: The fitted estimator.
        held_out: Its predictions of the held-out rows.
        inputs: Inputs of the held-out rows, ``(N, D)``.
        metrics: Scores by name of the model.
        margins: NLL of each other model minus that of the estimator, and the standard error of the difference.
        seconds: Duration of each stage.
        watcher: The user interface, which translates names of parameters.
        out: Folder of the run.
    """
    target = prepared.preprocessing.target
    shown = subset(len(inputs), MAX_POINTS, settings.seed)
    truth = prepared.targets[prepared.split.held_out]
    notes = prepared.notes
    about_inputs = _optional(
        "inputs",
        lambda: drivers(estimator, prepared.preprocessing, prepared.held_out, inputs, held_out, settings.seed),
        notes,
    )
    about_weights = _optional("weights", lambda: weights(estimator, inputs[shown], truth[shown], target), notes)
    return {
        "version": VERSION,
        "title": target.name,
        "task": target.task,
        "target": target.name,
        "classes": [str(label) for label in target.classes] or None,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {
            "file": prepared.file.path.name,
            "rows": len(prepared.targets),
            "train_rows": len(prepared.split.training),
            "held_out_rows": len(prepared.split.held_out),
            "held_out_how": prepared.split.how,
            "columns": prepared.described,
            "left_out": {name: watcher.words(why) for name, why in prepared.preprocessing.inputs.left_out.items()},
            "notes": [watcher.words(note) for note in notes],
            "target_histogram": _histogram(prepared),
        },
        "metrics": {name: dict(values) for name, values in metrics.items()},
        "margins": dict(margins),
        "held_out": _held_out(prepared, held_out, shown),
        "drivers": _plain(about_inputs),
        "epistemic_error": float(estimator.calibration_["error"][0]) if "error" in estimator.calibration_ else None,
        "surprises": _surprises(prepared, held_out),
        "training": {"loss": _thinned(estimator.history_["loss"][:, : estimator.epochs_])},
        "weights": about_weights,
        "reproduce": {
            "command": watcher.command(settings, out),
            "config": _plain(vars(settings)),
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
            "seconds": {name: round(value, 2) for name, value in seconds.items()},
        },
    }


def _optional(what: str, make: Callable[[], dict[str, Any]], notes: list[str]) -> dict[str, Any]:
    """Return a part of the report, or an empty one and a note if it fails, so that no finished fit is lost for it."""
    try:
        return make()
    except Exception as error:
        notes.append(f"the report does not describe the {what}: {type(error).__name__}: {error}")
        return {}


def _held_out(prepared: Prepared, held_out: Arrays, shown: NDArray[np.int64]) -> dict[str, Any]:
    columns: dict[str, Any] = {name: _plain(values[shown].tolist()) for name, values in held_out.items()}
    if "label" in columns:
        columns["label"] = [int(code) for code in columns["label"]]
    rows = prepared.rows[prepared.split.held_out[shown]] + prepared.file.first_line
    return {**columns, "row": rows.tolist()}


def _surprises(prepared: Prepared, held_out: Arrays) -> list[dict[str, Any]]:
    """Return the rows to which the model gave the lowest probability, the lowest first."""
    worst = np.argsort(-held_out["nll"], kind="stable")[:SURPRISES]
    table = prepared.held_out.take(worst)
    classes = prepared.preprocessing.target.classes
    found = []
    for number, row in enumerate(worst.tolist()):
        values = {
            column.name: _value(table.column(column.name)[number]) for column in prepared.preprocessing.inputs.columns
        }
        if classes:
            code = int(held_out["label"][row])
            best = int(held_out["probs"][row].argmax())
            actual: Any = str(classes[code])
            share = held_out["probs"][row]
            predicted = f"{classes[best]} ({share[best]:.1%}; {actual}: {share[code]:.1%})"
        else:
            actual = float(held_out["y"][row])
            predicted = _with_error(float(held_out["mean"][row]), float(held_out["std"][row]))
        found.append(
            {
                "row": int(prepared.rows[prepared.split.held_out[row]]) + prepared.file.first_line,
                "values": values,
                "y": actual,
                "predicted": predicted,
                "nll": _plain(float(held_out["nll"][row])),
            }
        )
    return found


def _with_error(mean: float, std: float) -> str:
    """Format a mean and its standard deviation, rounded to the second digit of the latter: 700,000 ± 190,000."""
    largest = max(abs(mean), std)
    if not std > 0 or not 1e-4 <= largest < 1e15:
        return f"{mean:.4g} ± {std:.2g}"
    last = math.floor(math.log10(float(f"{std:.1e}"))) - 1
    return " ± ".join(f"{round(value, -last):,.{max(0, -last)}f}" for value in (mean, std))


def _histogram(prepared: Prepared) -> dict[str, Any]:
    target = prepared.preprocessing.target
    if target.classes:
        counts = np.bincount(prepared.targets, minlength=len(target.classes))
        return {"labels": [str(label) for label in target.classes], "counts": counts.tolist()}
    counts, edges = np.histogram(prepared.targets, bins=min(_BINS, max(5, round(len(prepared.targets) ** 0.5))))
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def subset(rows: int, most: int, seed: int) -> NDArray[np.int64]:
    """Return the indices of at most ``most`` of the rows, drawn at random, in order."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).permutation(rows)[:most])


def _thinned(history: NDArray[np.float64]) -> list[list[float | None]]:
    """Return a list per member with at most ``MAX_EPOCHS`` epochs, including the first and the last."""
    epochs = history.shape[1]
    kept = np.linspace(0, epochs - 1, min(epochs, MAX_EPOCHS)).round().astype(int)
    found: list[list[float | None]] = _plain(history[:, kept].tolist())
    return found


def _value(scalar: Any) -> Any:
    value = _plain(scalar.as_py())
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)


def _plain(value: Any) -> Any:
    """Convert a value to JSON values, in which numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
