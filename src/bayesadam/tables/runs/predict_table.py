"""Predictions for a new table, written to a file."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import compute, csv, parquet

from bayesadam.files import whole_file
from bayesadam.tables.encoder.csv_numbers import is_text, levels_of
from bayesadam.tables.encoder.encoder import Encoded
from bayesadam.tables.encoder.findings import Findings, TableError, quoted
from bayesadam.tables.encoder.read_table import TableFile, is_parquet
from bayesadam.tables.encoder.spelling import spelled
from bayesadam.tables.estimators.members import ROWS
from bayesadam.tables.runs.settings import RunError

STDOUT = Path("-")
_FORMULA = r"(?s)^(=|[+@-].*(\pL{2}|[(!]))"
"""A regular expression for cells that spreadsheet programs take for formulas; numbers, also of telephones, are none."""


def predict_table(
    estimator: Any,
    file: TableFile,
    *,
    coverage: float = 0.95,
    interval: str | None = None,
    quantiles: Sequence[float] = (),
    copy: Sequence[str] = (),
    advance: Callable[[int], None] | None = None,
) -> tuple[pa.Table, list[str]]:
    """Return one row of predictions for every row of a table.

    A regression has the columns "mean", "std", "lower" and "upper". If the distribution has no finite variance
    (Student's t with up to 2 degrees of freedom), the cells of "std" are empty; if it has no mean either (up to 1
    degree of freedom), "mean" is the median. A classification has "predicted", "probability_LABEL" for every class,
    "entropy" and "mutual_information" (in nats). Copied columns come first.

    Args:
        estimator: The estimator of a run, which was fitted to a table.
        file: The table.
        coverage: Probability of the interval from "lower" to "upper".
        interval: Method of the intervals of a regression: "bayes" (the default) or "cross", as in
            :meth:`bayesadam.sklearn.BayesianMLPRegressor.predict_interval`.
        quantiles: Probabilities of further columns "quantile_0.1", ..., of a regression.
        copy: Columns of the table to copy, by which the rows can be recognised.
        advance: Function that is called with the number of rows that are done.

    Returns:
        The predictions, and notes about values that did not occur in training or cannot be read.

    Raises:
        RunError: An argument is not possible for this estimator or table.
        TableError: Columns are missing, most cells of a column are of another kind, or a value is too large.
    """
    regression, names, encoder = not hasattr(estimator, "classes_"), file.table.column_names, estimator.inputs_
    if getattr(estimator, "_several", False):
        raise RunError("the run must be that of one target, got several")
    if not all(0 < level < 1 for level in (coverage, *quantiles)):
        raise RunError(f"coverage and quantiles must be in (0, 1), got {(coverage, *quantiles)!r}")
    if not regression and (interval is not None or quantiles):
        raise RunError("intervals and quantiles are those of a number, but this run predicts classes")
    copy = [name if name in names else spelled(name) for name in copy]
    absent = [name for name in copy if name not in names]
    if absent:
        raise RunError(f"a column to copy must be one of the table, got {absent[0]!r}")
    extra = [name for name in names if name not in (*encoder.feature_names_in_, *copy)]
    notes = [*file.notes, *([f"columns that are no inputs are ignored: {quoted(extra)}"] if extra else [])]
    findings = Findings(file.place)
    matrix = encoder.encode(file.table, findings)
    parts = []
    for first in range(0, len(matrix), ROWS):
        rows = Encoded(matrix[first : first + ROWS])
        try:
            with np.errstate(all="ignore"):  # predictions that are not finite are refused below
                pred = estimator.predictive(rows)
        except ValueError as error:
            raise TableError(f"{error}; row 0 is {file.place(first)}") from None
        part = _regression(pred, coverage, quantiles) if regression else _classification(pred, estimator.classes_)
        if interval is not None:
            part["lower"], part["upper"] = _interval(estimator, rows, coverage, interval).T
        _require_finite(part, file, first)
        parts.append(part)
        if advance is not None:
            advance(first + len(rows.matrix))
    columns = {name: file.table.column(name) for name in dict.fromkeys(copy)}
    for name in parts[0]:
        if name in columns:
            raise RunError(f"a column to copy must not have the name of a prediction, got {name!r}")
        columns[name] = pa.array(np.concatenate([part[name] for part in parts]), from_pandas=True)
    return pa.table(columns), notes + findings.notes


def formula_notes(table: pa.Table) -> list[str]:
    """Return a note on each column with cells that spreadsheet programs take for formulas.

    Args:
        table: The predictions, in which such cells are as they were in the table that was given.
    """
    notes = []
    for name in table.column_names:
        cells = pa.array([name])
        if is_text(table.column(name).type):
            cells = pa.concat_arrays([cells, levels_of(table.column(name))])
        formulas = cells.filter(compute.match_substring_regex(cells, _FORMULA))
        if len(formulas):
            shown = f"{formulas[0].as_py()!r:.40}"
            notes.append(f"spreadsheet programs take cells of {name!r} for formulas ({shown}): import them as text")
    return notes


def write_predictions(table: pa.Table, out: Path) -> None:
    """Write predictions completely or not at all; a link is replaced, and the file that it points to is not changed.

    Args:
        table: The predictions.
        out: File to write: Parquet if its name ends in ``.parquet``, otherwise CSV; "-" is standard output.

    Raises:
        RunError: A CSV file cannot hold a copied column.
        OSError: The file cannot be written. An existing file is not changed.
    """
    content = io.BytesIO()
    if is_parquet(out):
        parquet.write_table(table, content)
    else:
        for name in table.column_names:
            try:
                csv.write_csv(table.select([name]).slice(0, 0), io.BytesIO())
            except pa.ArrowException:
                raise RunError(
                    f"a CSV file holds numbers, text or dates, got {name!r} ({table.field(name).type})"
                ) from None
        csv.write_csv(table, content)
    if out == STDOUT:
        sys.stdout.buffer.write(content.getvalue())
        sys.stdout.buffer.flush()
        return
    with whole_file(out) as temporary:
        temporary.write_bytes(content.getvalue())


def means(pred: Any) -> torch.Tensor:
    """Return the means of numbers, or their medians where there is no mean (Student's t with up to 1 degree)."""
    mean: torch.Tensor = pred.mean
    return mean.where(~mean.isnan(), pred.quantile(0.5)) if mean.isnan().any() else mean


def _regression(pred: Any, coverage: float, quantiles: Sequence[float]) -> dict[str, NDArray[Any]]:
    tail = 0.5 * (1.0 - coverage)
    lower, upper, *others = _array(pred.quantile([tail, 1.0 - tail, *quantiles]))
    std, width = _rounded(_array(pred.variance.sqrt())), upper - lower
    columns = {"mean": _rounded(_array(means(pred)), width), "std": np.where(np.isfinite(std), std, np.nan)}
    columns |= {"lower": _rounded(lower, width), "upper": _rounded(upper, width)}
    return columns | {f"quantile_{level}": _rounded(each, width) for level, each in zip(quantiles, others, strict=True)}


def _classification(pred: Any, classes: NDArray[Any]) -> dict[str, NDArray[Any]]:
    probs = _rounded(_array(pred.probs))
    shares = {f"probability_{_name(label)}": probs[:, code] for code, label in enumerate(classes.tolist())}
    doubts = {name: _rounded(_array(getattr(pred, name))) for name in ("entropy", "mutual_information")}
    return {"predicted": classes[probs.argmax(-1)], **shares, **doubts}


def _interval(estimator: Any, rows: Encoded, coverage: float, interval: str) -> NDArray[np.float64]:
    try:
        ends: NDArray[np.float64] = estimator.predict_interval(rows, coverage, method=interval)
    except ValueError as error:
        raise RunError(f"the interval {interval!r} is not possible: {error}") from None
    return _rounded(ends, ends[:, 1:] - ends[:, :1])


def _require_finite(part: dict[str, NDArray[Any]], file: TableFile, first: int) -> None:
    """Raise ``TableError`` if the prediction of a row, counted from ``first``, is not finite."""
    for name, values in part.items():
        if values.dtype.kind == "f" and name != "std" and not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise TableError(
                f"the prediction must be finite in every row, got {name} {values[row]:g} in "
                f"{file.place(first + row)}: its values are too far from those of the training"
            )


def _array(values: Any) -> NDArray[np.float64]:
    return np.asarray(values.detach().cpu().double())


def _rounded(values: NDArray[np.float64], width: Any = np.inf) -> NDArray[np.float64]:
    """Round to seven significant digits, or more where a ten-thousandth of an interval's width needs them."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = np.floor(np.log10(np.abs(values))) - np.floor(np.log10(np.where(width > 0, width, np.inf))) + 5.0
    digits = np.clip(np.nan_to_num(digits, nan=7.0), 7.0, 17.0).astype(int)
    pairs = zip(values.ravel().tolist(), digits.ravel().tolist(), strict=True)
    return np.array([float(f"{value:.{count}g}") for value, count in pairs]).reshape(values.shape)


def _name(label: bool | int | str) -> str:
    return str(label).lower() if isinstance(label, bool) else str(label)
