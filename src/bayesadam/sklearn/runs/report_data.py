"""The data of the report as plain numbers and texts, which a run stores so that the page can be made again."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesadam.posterior.gaussian import GaussianPosterior
from bayesadam.sklearn.runs.evaluation import Arrays, Scores
from bayesadam.sklearn.runs.explain import explain
from bayesadam.sklearn.runs.prepare import Prepared
from bayesadam.sklearn.tables.describe import describe

VERSION = 1
MAX_POINTS = 5_000
MAX_EPOCHS = 300
SURPRISES = 20
QUANTILES = 200
_BINS = 40
_PACKAGES = ("bayesadam", "torch", "numpy", "scikit-learn", "pyarrow")


def report_data(
    prepared: Prepared,
    estimator: Any,
    held_out: Arrays,
    metrics: Mapping[str, Scores],
    margins: Mapping[str, list[float] | None],
    seconds: Mapping[str, float],
    command: str,
) -> dict[str, Any]:
    """Return the data of the report for :func:`bayesadam.report.write_report`.

    Args:
        prepared: The data.
        estimator: The fitted estimator.
        held_out: Its predictions of the held-out rows.
        metrics: Scores by name of the model.
        margins: NLL of each other model minus that of the estimator, and the standard error of the difference.
        seconds: Duration of each stage.
        command: The command that repeats the fit.
    """
    target, notes, seed = prepared.target, prepared.notes, prepared.settings.seed
    table = prepared.table.take(prepared.split.held_out)
    shown = subset(len(table), MAX_POINTS, seed)
    about_inputs = _optional("inputs", lambda: explain(estimator, prepared.held_out, table, held_out, seed), notes)
    about_weights = _optional("weights", lambda: signal_to_noise(estimator.posterior_), notes)
    return {
        "version": VERSION,
        "title": target.name,
        "task": target.task,
        "target": target.name,
        "classes": [str(label) for label in target.classes] or None,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {
            "file": prepared.file.name,
            "rows": len(prepared.y),
            "train_rows": len(prepared.split.training),
            "held_out_rows": len(prepared.split.held_out),
            "held_out_how": prepared.split.how,
            "columns": [describe(c, prepared.table.column(c.name)) for c in estimator.inputs_.columns_],
            "left_out": prepared.left_out,
            "notes": notes,
            "target_histogram": _histogram(prepared),
        },
        "metrics": {name: dict(values) for name, values in metrics.items()},
        "margins": dict(margins),
        "held_out": _held_out(prepared, held_out, shown),
        "drivers": plain(about_inputs),
        "epistemic_error": float(estimator.calibration_["error"][0]) if "error" in estimator.calibration_ else None,
        "surprises": _surprises(prepared, held_out),
        "training": {"loss": _thinned(estimator.history_["loss"][:, : estimator.epochs_])},
        "weights": about_weights,
        "reproduce": {
            "command": command,
            "config": plain({**vars(prepared.settings), "data": prepared.file.name}),
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
            "seconds": {name: round(value, 2) for name, value in seconds.items()},
        },
    }


def signal_to_noise(posterior: Any) -> dict[str, Any]:
    """Return quantiles of the logarithms to base 10 of the weights' signal-to-noise ratios.

    The dictionary is empty if no weight has a variance.
    """
    if not all(isinstance(member, GaussianPosterior) for member in posterior.components):
        return {}
    ratios = [ratio.flatten() for member in posterior.components for ratio in member.signal_to_noise().values()]
    joined = torch.cat(ratios).double().cpu()
    logs = joined[(joined > 0) & joined.isfinite()].log10().numpy()
    return {"signal_to_noise": np.quantile(logs, np.linspace(0, 1, QUANTILES)).tolist()} if len(logs) else {}


def subset(rows: int, most: int, seed: int) -> NDArray[np.int64]:
    """Return the indices of at most ``most`` of the rows, drawn at random, in order."""
    return np.sort(np.random.default_rng(seed).permutation(rows)[:most]) if rows > most else np.arange(rows)


def plain(value: Any) -> Any:
    """Convert a value to JSON values, in which numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _optional(what: str, make: Callable[[], dict[str, Any]], notes: list[str]) -> dict[str, Any]:
    """Return a part of the report, or an empty one and a note if it fails, so that no finished fit is lost for it."""
    try:
        return make()
    except Exception as error:
        notes.append(f"the report does not describe the {what}: {type(error).__name__}: {error}")
        return {}


def _lines(prepared: Prepared, rows: NDArray[np.int64]) -> list[int]:
    """Return the numbers that held-out rows have in the file."""
    return (prepared.rows[prepared.split.held_out[rows]] + prepared.file.first_line).tolist()  # type: ignore[no-any-return]


def _held_out(prepared: Prepared, held_out: Arrays, shown: NDArray[np.int64]) -> dict[str, Any]:
    columns: dict[str, Any] = {name: plain(values[shown].tolist()) for name, values in held_out.items()}
    if "label" in columns:
        columns["label"] = [int(code) for code in columns["label"]]
    return {**columns, "row": _lines(prepared, shown)}


def _surprises(prepared: Prepared, held_out: Arrays) -> list[dict[str, Any]]:
    """Return the rows to which the model gave the lowest probability, the lowest first."""
    worst = np.argsort(-held_out["nll"], kind="stable")[:SURPRISES]
    encoder, classes = prepared.training.encoder, prepared.target.classes
    assert encoder is not None
    table = prepared.table.select([column.name for column in encoder.columns_]).take(prepared.split.held_out[worst])
    surprises = []
    for row, line, values in zip(worst.tolist(), _lines(prepared, worst), table.to_pylist(), strict=True):
        actual: Any = float(held_out["y"][row]) if not classes else str(classes[int(held_out["label"][row])])
        if classes:
            share, code = held_out["probs"][row], int(held_out["label"][row])
            best = int(share.argmax())
            predicted = f"{classes[best]} ({share[best]:.1%}; {actual}: {share[code]:.1%})"
        else:
            predicted = with_error(float(held_out["mean"][row]), float(held_out["std"][row]))
        shown = {
            name: plain(v) if isinstance(v, bool | int | float | str | None) else str(v) for name, v in values.items()
        }
        nll = plain(float(held_out["nll"][row]))
        surprises.append({"row": line, "values": shown, "y": actual, "predicted": predicted, "nll": nll})
    return surprises


def with_error(mean: float, std: float) -> str:
    """Format a mean and its standard deviation, rounded to the second digit of the latter: 700,000 ± 190,000."""
    largest = max(abs(mean), std)
    if not std > 0 or not 1e-4 <= largest < 1e15:
        return f"{mean:.4g} ± {std:.2g}"
    last = math.floor(math.log10(float(f"{std:.1e}"))) - 1
    return " ± ".join(f"{round(value, -last):,.{max(0, -last)}f}" for value in (mean, std))


def _histogram(prepared: Prepared) -> dict[str, Any]:
    target, y = prepared.target, prepared.y
    if target.classes:
        counts = np.bincount(y, minlength=len(target.classes))
        return {"labels": [str(label) for label in target.classes], "counts": counts.tolist()}
    counts, edges = np.histogram(y, bins=min(_BINS, max(5, round(len(y) ** 0.5))))
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _thinned(history: NDArray[np.float64]) -> list[list[float | None]]:
    """Return a list per member with at most ``MAX_EPOCHS`` epochs, including the first and the last."""
    epochs = history.shape[1]
    kept = np.linspace(0, epochs - 1, min(epochs, MAX_EPOCHS)).round().astype(int)
    thinned: list[list[float | None]] = plain(history[:, kept].tolist())
    return thinned


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
