"""Predictions for a new table, chunk by chunk in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from bayesadam.runs.errors import RunError
from bayesadam.runs.folder import Run
from bayesadam.tabular import Findings, Preprocessing, TableError, TableFile, Target, table_writer
from bayesadam.tabular.numbers import is_text
from bayesadam.tabular.open import is_parquet
from bayesadam.tabular.written import NUMBER


def predict(
    run: Run,
    file: TableFile,
    out: Path,
    *,
    coverage: float = 0.95,
    interval: str | None = None,
    copy: Sequence[str] = (),
    spreadsheet: bool = False,
    advance: Callable[[int], None] | None = None,
) -> tuple[int, list[str]]:
    """Write one row of predictions for every row of a table.

    A regression has the columns "mean", "std", "lower" and "upper". If the distribution has no finite variance
    (Student's t with up to 2 degrees of freedom), the cells of "std" are empty; if it has no mean either (up to 1
    degree of freedom), "mean" is the median. A classification has "predicted", "probability_LABEL" for every class,
    "entropy" and "mutual_information" (in nats). Copied columns come first.

    Args:
        run: The run.
        file: The table.
        out: File to write: Parquet if its name ends in ``.parquet``, otherwise CSV.
        coverage: Probability of the interval from "lower" to "upper".
        interval: Method of the intervals of a regression: "bayes" (the default) or "cross", as in
            :meth:`bayesadam.sklearn.BayesianMLPRegressor.predict_interval`.
        copy: Columns of the table to copy, by which the rows can be recognised.
        spreadsheet: Whether to put an apostrophe before text that a spreadsheet would interpret as a formula.
        advance: Function that is called with the number of rows that are done.

    Returns:
        The number of rows, and notes about values that did not occur in training.

    Raises:
        RunError: ``coverage`` is not in (0, 1), ``interval`` is unknown or not available, ``copy`` has a column that
            does not exist, has the name of a prediction or cannot be written to a CSV file, ``spreadsheet`` is given
            for a Parquet file, or ``out`` is the table or in the folder of the run.
        TableError: Columns are missing, values are of another kind or too large, or there are no rows.
        OSError: ``out`` cannot be written. An existing file is not changed.
    """
    if not 0 < coverage < 1:
        raise RunError(f"`coverage` must be in (0, 1), got {coverage!r}")
    if out.is_dir():
        raise RunError(f"`out` must be a file, got the folder {str(out)!r}")
    if out.exists() and out.samefile(file.path):
        raise RunError(f"`out` must be another file than the table, got {str(out)!r}")
    if out.parent.resolve().is_relative_to(run.path.resolve()):
        raise RunError(f"`out` must be outside of the run, got {str(out)!r}")
    if spreadsheet and is_parquet(out):
        raise RunError(f"`spreadsheet` must be given for a CSV file only, got `out` {str(out)!r}")
    copied = dict.fromkeys(copy)
    absent = [name for name in copied if name not in file.columns]
    if absent:
        raise RunError(f"`copy` must be a column of the table, got {absent[0]!r}")
    preprocessing, estimator = run.preprocessing, run.estimator
    if file.decimal is not None:
        preprocessing = preprocessing.reading(file.decimal)
    looked_at = [name for name in file.columns if name in preprocessing.types or name not in copied]
    notes, findings, done = [*file.notes, *preprocessing.check(looked_at)], Findings(), 0
    with table_writer(out) as write:
        for first, table in file.chunks(copied | preprocessing.types):
            inputs = _inputs(preprocessing, table, file, first, findings)
            found = _predictions(estimator.predictive(inputs), preprocessing.target, coverage)
            found = _conformal(found, estimator, inputs, preprocessing.target, coverage, interval)
            _require_finite(found, file, first)
            if not is_parquet(out):
                _require_printable(table.select(list(copied)))
            rows = _beside(table.select(list(copied)), found)
            write(_without_formulas(rows) if spreadsheet else rows)
            done += len(table)
            if advance is not None:
                advance(done)
        if not done:
            raise TableError(f"{file.path} must have rows below its header, got none")
    return done, notes + findings.notes()


def _inputs(preprocessing: Preprocessing, table: pa.Table, file: TableFile, first: int, findings: Findings) -> Any:
    return preprocessing.transform(table, place=lambda row: file.place(first + row), findings=findings)


def _predictions(found: Any, target: Target, coverage: float) -> pa.Table:
    if target.task == "regression":
        tail = 0.5 * (1.0 - coverage)
        lower, upper = found.quantile([tail, 1.0 - tail])
        mean, std = found.mean, _numbers(found.variance.sqrt())
        mean = mean.where(~mean.isnan(), found.quantile(0.5)) if mean.isnan().any() else mean
        columns = {"mean": _numbers(mean), "std": pa.array(std, mask=~np.isfinite(std))}
        return pa.table({**columns, "lower": _numbers(lower), "upper": _numbers(upper)})
    probs = _numbers(found.probs)
    predicted = pa.array(target.classes).take(pa.array(probs.argmax(-1)))
    shares = {f"probability_{_name(label)}": probs[:, code] for code, label in enumerate(target.classes)}
    doubts = {"entropy": _numbers(found.entropy), "mutual_information": _numbers(found.mutual_information)}
    return pa.table({"predicted": predicted, **shares, **doubts})


def _conformal(
    found: pa.Table, estimator: Any, inputs: Any, target: Target, coverage: float, interval: str | None
) -> pa.Table:
    """Replace the ends of the intervals."""
    if interval is None:
        return found
    if target.task != "regression":
        raise RunError(f"`interval` must be left out of a classification, got {interval!r}")
    try:
        ends = estimator.predict_interval(inputs, coverage, method=interval)
    except ValueError as error:
        raise RunError(f"`interval` {interval!r} is not possible: {error}") from None
    columns = dict(zip(found.column_names, found.columns, strict=True))
    return pa.table({**columns, "lower": ends[:, 0], "upper": ends[:, 1]})


def _beside(kept: pa.Table, found: pa.Table) -> pa.Table:
    for name in kept.column_names:
        if name in found.column_names:
            raise RunError(f"`copy` must not have the name of a column of the predictions, got {name!r}")
    return pa.table(dict(zip(kept.column_names + found.column_names, kept.columns + found.columns, strict=True)))


def _require_printable(table: pa.Table) -> None:
    """Raise ``RunError`` if a CSV file cannot hold the values of a column."""
    for field in table.schema:
        if pa.types.is_nested(field.type) or (not pa.types.is_primitive(field.type) and not is_text(field.type)):
            raise RunError(f"`copy` must be numbers, text or dates for a CSV file, got {field.name!r} ({field.type})")


def _require_finite(found: pa.Table, file: TableFile, first: int) -> None:
    """Raise ``TableError`` if the prediction of a row, counted from ``first``, is not finite; empty cells are fine."""
    for name, column in zip(found.column_names, found.columns, strict=True):
        if not pa.types.is_floating(column.type):
            continue
        wrong = np.flatnonzero(~compute.is_finite(column).fill_null(True).to_numpy())
        if len(wrong):
            row = int(wrong[0])
            raise TableError(
                f"the prediction must be finite in every row, got {name} {column[row].as_py():g} in "
                f"{file.place(first + row)}: its values are too far from those of the training"
            )


def _without_formulas(table: pa.Table) -> pa.Table:
    """Put an apostrophe before texts and names of columns that begin like a formula, unless they are numbers."""
    columns = [_guarded(column) if is_text(column.type) else column for column in table.columns]
    return pa.table(columns, names=_guarded(pa.chunked_array([table.column_names])).to_pylist())


def _guarded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    text = column.cast(pa.string())
    number = compute.match_substring_regex(text, rf"^\s*({NUMBER})\s*$")
    formula = compute.and_not(compute.match_substring_regex(text, r"^[=+\-@\t\r]"), number)
    return compute.if_else(formula, compute.binary_join_element_wise("'", text, ""), text)


def _numbers(values: Any) -> np.ndarray[Any, np.dtype[Any]]:
    return np.asarray(values.detach().cpu())


def _name(label: bool | int | str) -> str:
    return str(label).lower() if isinstance(label, bool) else str(label)
