"""``fit_table``: from the settings to a fitted estimator, its evaluation, and a complete run folder."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesadam.files import write_json, write_text
from bayesadam.tables.encoder.encoder import Encoded
from bayesadam.tables.estimators.choice import described
from bayesadam.tables.estimators.classifier import BayesianMLPClassifier
from bayesadam.tables.estimators.members import ROWS
from bayesadam.tables.estimators.named_likelihoods import LOGARITHMIC
from bayesadam.tables.estimators.regressor import BayesianMLPRegressor
from bayesadam.tables.estimators.threads import threads_for
from bayesadam.tables.report import write_report
from bayesadam.tables.report.predicted import OURS
from bayesadam.tables.runs import run_folder as names
from bayesadam.tables.runs.baselines import baseline_rows, baselines, recipes
from bayesadam.tables.runs.evaluation import Arrays, Scores, compared, predict_held_out, scores, worse_than_constant
from bayesadam.tables.runs.prepare import Prepared, prepare
from bayesadam.tables.runs.report_data import report_data
from bayesadam.tables.runs.settings import RunError, Settings


class Watcher:
    """The user interface of a fit, which is informed of its progress. This base class shows nothing."""

    def prepared(self, prepared: Prepared) -> None:
        """Called when the table has been read and prepared."""

    def epoch(self, status: Any) -> None:
        """Called after each epoch of training."""

    def stage(self, what: str) -> None:
        """Called when a stage after the training begins."""


@dataclass(frozen=True)
class TableFit:
    """The result of a fit.

    Attributes:
        estimator: The fitted estimator, which predicts from data frames with the columns of the table.
        settings: Settings that repeat the fit.
        metrics: Scores on the held-out rows, by name of the model.
        report: The data of the report, see :func:`bayesadam.tables.report.write_report`.
        notes: Notes that were added after ``Watcher.prepared`` was called.
        seconds: Duration of each stage.
    """

    estimator: BayesianMLPRegressor | BayesianMLPClassifier
    settings: Settings
    metrics: dict[str, Scores]
    report: dict[str, Any]
    notes: list[str]
    seconds: dict[str, float]

    def save(self, folder: Path) -> None:
        """Write the files of a run into an existing folder."""
        self.estimator.save(folder)
        parts = {name: self.report["data"][name] for name in ("train_rows", "held_out_rows", "held_out_how")}
        record = {**parts, "models": self.metrics, "seconds": self.seconds, "interrupted": self.estimator.interrupted_}
        write_text(folder / names.METRICS, json.dumps(record, allow_nan=False) + "\n")
        write_json(folder / names.REPORT_DATA, self.report)
        write_report(folder / names.REPORT, self.report)
        self.settings.save(folder / names.CONFIG)


def fit_table(
    settings: Settings,
    *,
    out: str | Path | None = None,
    frame: Any = None,
    watcher: Watcher | None = None,
    force: bool = False,
) -> TableFit:
    """Fit an estimator to a table, score it on held-out rows, and write a run folder: what ``bayesadam fit`` does.

    The folder is written completely or not at all. Ctrl-C ends the training, or the fit of the baselines, but not the
    whole fit: the run has the best networks so far.

    Args:
        settings: Settings of the fit.
        out: The run folder; ``None`` writes nothing.
        frame: The table as a data frame, if it is not to be read from the file ``settings.data``.
        watcher: The user interface.
        force: Whether to replace an existing run.

    Raises:
        bayesadam.sklearn.TableError: The table cannot be used as it is.
        bayesadam.sklearn.RunError: The folder is in use, or the settings do not match the data.
        MemoryError: The table is too large.
        OSError: The folder cannot be written to.
        KeyboardInterrupt: The user pressed Ctrl-C before the first epoch, or while the run was written.
    """
    watcher = watcher or Watcher()
    if out is None:
        return _fit(settings, frame, watcher)
    names.reserve(Path(out), force=force)
    result = _fit(settings, frame, watcher)
    with names.new_run(Path(out), force=force) as folder:
        result.save(folder)
    return result


def _fit(settings: Settings, frame: Any, watcher: Watcher) -> TableFit:
    seconds: dict[str, float] = {}
    with _timed(seconds, "reading"):
        prepared = prepare(settings, frame)
    watcher.prepared(prepared)
    announced, notes = len(prepared.notes), prepared.notes
    with threads_for(len(prepared.split.training)):
        with _timed(seconds, "training"):
            estimator = _train(prepared, watcher)
        watcher.stage("scores of the held-out rows")
        with _timed(seconds, "predictions"):
            held_out = _held_out(prepared, estimator)
            left_out = _left_out(prepared, estimator)
        transform = getattr(estimator, "target_transform_", "none")
        watcher.stage("linear model and gradient boosting")
        with _timed(seconds, "baselines"):
            try:
                others = baselines(prepared, getattr(estimator, "_functions", ()))
            except KeyboardInterrupt:
                others = {}
                notes.append("linear model and gradient boosting were not trained, because of Ctrl-C")
        metrics = {OURS: scores(held_out, seconds["training"])}
        metrics |= {name: scores(*predictions) for name, predictions in others.items()}
        comparison = compared(held_out, {name: predictions for name, (predictions, _) in others.items()})
        comparison["recipes"] = recipes(prepared, transform) if others else {}
        most = baseline_rows(prepared)
        if len(prepared.split.training) > most:
            notes.append(f"linear model and gradient boosting were trained on {most:,} of the training rows")
        epochs = int(np.isfinite(estimator.history_["loss"]).any(0).sum())
        if settings.weights is not None:
            notes.append("held-out rows count by their weights in all scores, as training rows do")
        if prepared.target.task == "regression" and (sentence := described(estimator)):
            notes.append(sentence)
            if others and transform != "none":
                notes.append("linear model, gradient boosting and constant have this transform, too")
        if prepared.settings.likelihood in LOGARITHMIC and worse_than_constant(metrics):
            notes.append(
                "a model's means of some rows are far too large (its RMSE is not below that of a constant): give the "
                "logarithm of exposures, and of other positive inputs that spread over orders of magnitude"
            )
        if estimator.stopped_ == "early":
            notes.append(
                f"early stopping after {epochs} epochs: the validation loss was lowest after epoch "
                f"{estimator.epochs_}, and the weights of that epoch are used"
            )
        if estimator.interrupted_:
            notes.append(f"Ctrl-C ended the training after {epochs} epochs; the networks are the best until then")
        watcher.stage("report")
        done = prepared.settings if estimator.interrupted_ else replace(prepared.settings, method=estimator.method_)
        report = report_data(prepared, done, estimator, held_out, left_out, metrics, comparison, seconds)
    return TableFit(estimator, done, metrics, report, notes[announced:], seconds)


def _held_out(prepared: Prepared, estimator: Any) -> Arrays:
    """Return the predictions of the held-out rows."""
    parts = []
    for first in range(0, len(prepared.split.held_out), ROWS):
        rows = prepared.split.held_out[first : first + ROWS]
        pred = estimator.predictive(Encoded(prepared.matrix[rows]))
        parts.append(predict_held_out(pred, prepared.y[rows], prepared.weights_of(rows)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _left_out(prepared: Prepared, estimator: Any) -> tuple[NDArray[np.int64], Arrays] | None:
    """Return indices of training rows, and their predictions by members that left them out.

    If the last rows in time are held out, only they can show whether the model holds for later rows.
    """
    if estimator.left_out_ is None or prepared.settings.time:
        return None
    rows, pred = estimator.left_out_
    table_rows = prepared.split.training[rows]
    return table_rows, predict_held_out(pred, prepared.y[table_rows], prepared.weights_of(table_rows))


def _train(prepared: Prepared, watcher: Watcher) -> Any:
    kind = BayesianMLPClassifier if prepared.target.classes else BayesianMLPRegressor
    y = prepared.y[prepared.split.training]
    y = np.array(prepared.target.classes)[y] if prepared.target.classes else y
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            rows = Encoded(prepared.matrix[prepared.split.training], prepared.encoder)
            estimator = kind(**prepared.settings.estimator_options()).fit(
                rows,
                y,
                prepared.weights_of(prepared.split.training),
                groups=prepared.groups,
                on_epoch=watcher.epoch,
            )
        except (ValueError, TypeError, FloatingPointError) as error:
            raise RunError(f"the fit is not possible: {error}") from error
    if not estimator.interrupted_:
        prepared.notes.extend(dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught))
    return estimator


@contextmanager
def _timed(seconds: dict[str, float], what: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[what] = time.perf_counter() - begin
