"""The fit, from the settings to the complete run folder."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesadam.files import write_json, write_text
from bayesadam.report import write_report
from bayesadam.report.report_data import Rows, report_data, validation
from bayesadam.runs import folder as names
from bayesadam.runs.baselines import MAX_ROWS, baselines
from bayesadam.runs.errors import RunError
from bayesadam.runs.folder import check_place, new_run
from bayesadam.runs.held_out import Arrays, predict_held_out, values_of
from bayesadam.runs.prepare import Prepared, prepare
from bayesadam.runs.scores import Scores, margin, scores
from bayesadam.runs.settings import Settings
from bayesadam.runs.watcher import Watcher
from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor
from bayesadam.sklearn.choice import described
from bayesadam.sklearn.storage import save_estimator

_MANY = 20_000
_FEW_EPOCHS = 10


@dataclass(frozen=True)
class Result:
    """The result of a fit.

    Attributes:
        metrics: Scores on the held-out rows, by name of the model.
        interrupted: Whether training was stopped by Ctrl-C.
        epochs: Number of epochs of the training.
        notes: Notes that were added after ``Watcher.prepared`` was called.
        seconds: Duration of each stage.
    """

    metrics: dict[str, Scores]
    interrupted: bool
    epochs: int
    notes: list[str]
    seconds: dict[str, float]


def fit(settings: Settings, out: Path, watcher: Watcher, *, force: bool = False) -> Result:
    """Fit, score, and write a run folder. The folder is written completely or not at all.

    Ctrl-C ends the training, or the fit of the baselines, but not the whole fit: the run has the best networks so far.

    Args:
        settings: Settings of the fit.
        out: The run folder.
        watcher: The user interface, which is informed of the progress.
        force: Whether to replace an existing run.

    Raises:
        TableError: The table cannot be used as it is.
        RunError: The folder is in use, or the settings do not match the data.
        NotEnoughMemory: The table is too large.
        OSError: The folder cannot be written to.
        KeyboardInterrupt: The user pressed Ctrl-C before the first epoch, or while the run was written.
    """
    check_place(out, force=force)
    seconds: dict[str, float] = {}
    with _timed(seconds, "reading"):
        prepared = prepare(settings)
    watcher.prepared(prepared)
    shown = len(prepared.notes)
    target = prepared.preprocessing.target
    with new_run(out, force=force) as folder, _threads(len(prepared.inputs)):
        with _timed(seconds, "training"):
            estimator, notes = _train(prepared, settings, watcher.epoch)
        prepared.notes.extend(notes)
        watcher.stage("scores of the held-out rows")
        truth = prepared.targets[prepared.split.held_out]
        inputs = prepared.held_out_inputs
        with _timed(seconds, "predictions"):
            held_out = predict_held_out(estimator, inputs, truth)
        watcher.stage("linear model and gradient boosting")
        with _timed(seconds, "baselines"):
            try:
                others = baselines(
                    prepared.inputs,
                    prepared.targets[prepared.split.training],
                    inputs,
                    truth,
                    task=target.task,
                    classes=len(target.classes),
                    seed=settings.seed,
                )
            except KeyboardInterrupt:
                others = {}
                prepared.notes.append("linear model and gradient boosting were not trained, because of Ctrl-C")
        metrics = {"bayesadam": scores(held_out, seconds["training"])}
        metrics |= {name: scores(*found) for name, found in others.items()}
        margins = {name: margin(held_out, found) for name, (found, _) in others.items()}
        if len(prepared.inputs) > MAX_ROWS:
            prepared.notes.append(
                f"linear model and gradient boosting were trained on {MAX_ROWS:,} of the training rows"
            )
        interrupted = estimator.interrupted_
        epochs = int(np.isfinite(estimator.history_["loss"]).any(0).sum())
        if target.task == "regression" and (sentence := described(estimator)):
            prepared.notes.append(sentence)
        if estimator.stopped_ == "early":
            prepared.notes.append(
                f"early stopping after {epochs} epochs: the validation loss was lowest after epoch "
                f"{estimator.epochs_}, and the weights of that epoch are used"
            )
        watcher.stage("report")
        settings = _as_done(settings, estimator, interrupted)
        report = _report(prepared, settings, estimator, held_out, metrics, margins, seconds, watcher, out)
        model = save_estimator(estimator, folder)
        prepared.preprocessing.save(folder / names.PREPROCESSING, model=model)
        parts = {name: report["data"][name] for name in ("train_rows", "held_out_rows", "held_out_how")}
        record = {**parts, "models": metrics, "seconds": seconds, "interrupted": interrupted}
        write_text(folder / names.METRICS, json.dumps(record, allow_nan=False) + "\n")
        write_json(folder / names.REPORT_DATA, report)
        write_report(folder / names.REPORT, report)
        settings.save(folder / names.CONFIG)
    return Result(metrics, interrupted, epochs, prepared.notes[shown:], seconds)


def _report(
    prepared: Prepared,
    settings: Settings,
    estimator: Any,
    held_out: Arrays,
    metrics: dict[str, Scores],
    margins: dict[str, list[float] | None],
    seconds: dict[str, float],
    watcher: Watcher,
    out: Path,
) -> dict[str, Any]:
    """Return the data of the report."""
    target, split, known = prepared.preprocessing.target, prepared.split, prepared.preprocessing.inputs
    features = np.repeat(np.arange(len(known.columns)), [len(column.features) for column in known.columns])
    matrix = np.empty((len(prepared.targets), len(features)), dtype=np.float32)
    matrix[split.training], matrix[split.held_out] = prepared.inputs, prepared.held_out_inputs

    def predictive(donors: Any) -> Any:
        """Return the predictions of rows that have column ``j`` of row ``donors[i, j]``."""
        return estimator.predictive(matrix[donors[:, features], np.arange(matrix.shape[1])])

    shared = replace(settings, data=prepared.file.path.name)  # without folders
    left_out = None
    if estimator.left_out_ is not None:
        rows, pred = estimator.left_out_
        at = split.training[rows]
        left_out = at, values_of(pred, prepared.targets[at])
    return report_data(
        Rows(
            prepared.columns,
            prepared.targets,
            prepared.rows + prepared.file.first_line,
            split.held_out,
            target.name,
            target.classes,
        ),
        held_out,
        left_out,
        predictive,
        seed=settings.seed,
        about={
            "file": prepared.file.path.name,
            "held_out_how": split.how,
            "left_out": {name: watcher.words(why) for name, why in known.left_out.items()},
            "epistemic_error": float(estimator.calibration_["error"][0]) if "error" in estimator.calibration_ else None,
        },
        notes=[watcher.words(note) for note in prepared.notes],
        metrics=metrics,
        margins=margins,
        training=validation(estimator.history_["held_out_nll"], estimator.epochs_),
        reproduce={
            "command": watcher.command(shared, Path(out.name)),
            "config": vars(shared),
            "seconds": seconds,
        },
    )


def _train(prepared: Prepared, settings: Settings, on_epoch: Callable[[Any], None]) -> tuple[Any, list[str]]:
    regression = prepared.preprocessing.target.task == "regression"
    # The preprocessing has standardised the matrix in double precision.
    options = settings.estimator_options() | {"standardize": False}
    estimator = (BayesianMLPRegressor if regression else BayesianMLPClassifier)(**options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            estimator.fit(
                prepared.inputs,
                prepared.targets[prepared.split.training],
                groups=prepared.groups,
                on_epoch=on_epoch,
            )
        except ValueError as error:
            raise RunError(f"the fit is not possible: {error}") from error
    interrupted = estimator.interrupted_
    messages = [] if interrupted else [" ".join(str(w.message).split()) for w in caught]
    return estimator, list(dict.fromkeys(messages))


def _as_done(settings: Settings, estimator: Any, interrupted: bool) -> Settings:
    """Return settings that reproduce the fit: a time budget is replaced by the number of epochs.

    A budget that was too short for ten complete epochs is kept.
    """
    if interrupted:
        return settings
    settings = replace(settings, method=estimator.method_)
    planned = estimator.history_["loss"].shape[1]
    if settings.time_budget is None or estimator.stopped_ == "time" or planned <= _FEW_EPOCHS:
        return settings
    return replace(settings, time_budget=None, epochs=planned)


@contextmanager
def _threads(rows: int) -> Iterator[None]:
    """Context with one thread if there are few rows, whose steps are so short that threads would only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if rows <= _MANY else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _timed(seconds: dict[str, float], what: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[what] = time.perf_counter() - begin
