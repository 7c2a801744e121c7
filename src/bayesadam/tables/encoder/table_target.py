"""The target of a table: the task, the values or classes of all rows, and errors for what cannot be predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tables.encoder.column_types import have_few_levels, level_counts
from bayesadam.tables.encoder.csv_numbers import (
    are_codes,
    are_plain,
    as_text,
    decimal_of,
    is_number,
    is_text,
    levels_of,
    numbers_in,
    read_numbers,
)
from bayesadam.tables.encoder.dates import are_cells
from bayesadam.tables.encoder.describe import code_notes, number_notes
from bayesadam.tables.encoder.encoder import FEW, are_whole
from bayesadam.tables.encoder.findings import Place, TableError, quoted, row_place
from bayesadam.tables.encoder.frames import as_table

TASKS = ("regression", "classification")
MAX_CLASSES = 1000
Label = bool | int | str


@dataclass(frozen=True)
class Target:
    """The target of a prediction.

    Attributes:
        name: Name of the column.
        task: "regression" or "classification".
        why: Reason for this task.
        classes: The labels of the table, sorted; empty for a regression.
        values: Values of all rows: numbers, nan if the value is missing; or indices of classes, -1 if it is missing.
        notes: Notes on how the column is read, and on rows that cannot be used.
        unit: Unit of numbers that are text, for example "$".
        cautions: Notes on values that make the whole result meaningless if they are not what they seem to be.
    """

    name: str
    task: str
    why: str
    classes: tuple[Label, ...]
    values: NDArray[Any]
    notes: list[str]
    unit: str = ""
    cautions: tuple[str, ...] = ()

    @property
    def known(self) -> NDArray[np.bool_]:
        """Mask of the rows that have a target."""
        return np.isfinite(self.values) if self.task == "regression" else self.values >= 0


def read_target(
    name: str,
    column: pa.ChunkedArray,
    task: str | None = None,
    *,
    place: Place = row_place,
    decimal: str | None = None,
    advise: bool = True,
) -> Target:
    """Find the task from the values of all rows, and convert them.

    Args:
        name: Name of the column.
        column: Values of the column.
        task: One of ``TASKS``, if the user chose it.
        place: Function that returns the place of a row for messages.
        decimal: Decimal mark of numbers that are text. With ``None`` it is found.
        advise: Whether errors advise the setting ``missing``, which an estimator's targets do not have.

    Raises:
        TableError: The column has dates, text among numbers, too many classes, or only one value.
    """
    if task not in (None, *TASKS):
        raise TableError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    kind = column.type
    if column.null_count == len(column):
        raise TableError(f"the target {name!r} must have values, got none in {len(column):,} rows")
    if not (is_number(kind) or is_text(kind) or pa.types.is_boolean(kind)):
        dates = "durations" if pa.types.is_duration(kind) else "dates"
        what = dates if pa.types.is_temporal(kind) else f"the type {kind}"
        raise TableError(f"the target {name!r} must be numbers or classes, got {what}: make numbers of them")
    decimal = decimal or (decimal_of(levels_of(column)) if is_text(kind) else None) or "."
    task, why = _task(column, decimal) if task is None else (task, "as it was asked for")
    if task == "regression":
        return _regression(name, column, why, place, decimal, advise)
    return _classification(name, column, why, place)


def numbers_of_text(values: Any) -> Any:
    """Return the targets of a regression as numbers if they are text, such as "$1,234.50"; otherwise as they are.

    Raises:
        TableError: They are dates, or text that is not numbers.
    """
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "OUMm":
        return values
    column = as_table(pd.DataFrame({"y": values})).column("y")
    if is_text(column.type) or pa.types.is_temporal(column.type):
        return read_target("y", column, "regression", advise=False).values
    return values


def _task(column: pa.ChunkedArray, decimal: str) -> tuple[str, str]:
    """Return the task that the values suggest, and the reason."""
    if pa.types.is_boolean(column.type):
        return "classification", "its values are true or false"
    if is_text(column.type):
        counts = level_counts(column)
        levels = pa.array(list(counts), pa.string())
        read = read_numbers(levels, decimal)
        named = have_few_levels(counts) and (read.odd.any() or are_plain(levels))
        if named or are_codes(levels) or 2 * np.isfinite(read.values).sum() <= len(levels):
            return "classification", "its values are text"
    values = numbers_in(column, decimal)
    exact = column.drop_null().unique() if pa.types.is_integer(column.type) else np.unique(values[~np.isnan(values)])
    if not are_whole(values):
        return "regression", "its values are numbers with decimals"
    few = not is_text(column.type) and len(exact) <= FEW
    return "classification" if few else "regression", f"its values are {len(exact):,} different whole numbers"


def _regression(name: str, column: pa.ChunkedArray, why: str, place: Place, decimal: str, advise: bool) -> Target:
    read = read_numbers(levels_of(column), decimal) if is_text(column.type) else None
    unit = "" if read is None else read.unit
    if read is not None and unit is None:
        units = quoted(sorted(set(read.units[~np.isnan(read.values)])))
        raise TableError(f"the target {name!r} must be numbers in one unit, got {units}")
    values = _numbers(name, column, place, decimal, advise)
    numbers = values[~np.isnan(values)]
    if numbers.min() == numbers.max():
        raise TableError(f"the target {name!r} must have different values, got {numbers[0]:g} in every row")
    notes = number_notes(name, column, place, decimal) + _left_out(len(values) - len(numbers))
    cautions = tuple(code_notes(name, values, place))
    return Target(name, "regression", why, (), values, notes, unit or "", cautions)


def _classification(name: str, column: pa.ChunkedArray, why: str, place: Place) -> Target:
    if is_number(column.type) and not are_whole(values := _numbers(name, column, place)):
        odd = values[~np.isnan(values) & (values % 1 != 0)]
        raise TableError(
            f"the target {name!r} must be text, truth values or whole numbers for a classification, got {odd[0]:g}"
        )
    text = as_text(column.cast(pa.int64()) if is_number(column.type) else column)  # 3.0 becomes "3"
    counts = level_counts(text)
    single = [level for level, count in counts.items() if count == 1]
    labels: list[Any] = sorted(_label(level, column.type) for level, count in counts.items() if count > 1)
    if len(counts) > MAX_CLASSES or (len(counts) > FEW and 2 * len(counts) > len(column)):
        raise TableError(
            f"the target {name!r} must be numbers or classes, got text with {len(counts):,} different values "
            f"in {len(column):,} rows"
            if is_text(column.type)
            else f"the target {name!r} must have fewer classes, got {len(counts):,} in {len(column):,} rows"
        )
    if len(counts) == 1:
        raise TableError(f"the target {name!r} must have different values, got {next(iter(counts))!r} in every row")
    if len(labels) < 2:
        raise TableError(
            f"the target {name!r} must have two classes with two rows each at least, got {quoted(list(counts), 3)}"
        )
    notes: list[str] = []
    names = pa.array([str(label).lower() if isinstance(label, bool) else str(label) for label in labels])
    codes = compute.fill_null(compute.index_in(text, value_set=names), -1).to_numpy().astype(np.int64)
    if single:
        rows = [compute.index(text, level).as_py() for level in single]
        where = ", ".join(f"{level!r} in {place(row)}" for level, row in zip(single[:3], rows, strict=False))
        notes = [f"classes of a single row are left out ({where}{', ...' * (len(single) > 3)})"]
    return Target(name, "classification", why, tuple(labels), codes, [*notes, *_left_out(column.null_count)])


def _numbers(
    name: str, column: pa.ChunkedArray, place: Place, decimal: str = ".", advise: bool = True
) -> NDArray[np.float64]:
    """Return the numbers in a target's column, with nan for missing values."""
    values = numbers_in(column, decimal)
    wrong = np.isnan(values) & are_cells(column)
    if wrong.any():
        row = int(wrong.argmax())
        cell = column[row].as_py()
        others = int(wrong.sum()) - 1
        more = f" and {others:,} other {'row' if others == 1 else 'rows'}" if others else ""
        advice = f"; if it means a missing value: missing=[{str(cell)!r}]" if advise else ""
        raise TableError(
            f"the target {name!r} must be a finite number in every row, got {cell!r} in {place(row)}{more}{advice}"
        )
    return values


def _left_out(rows: int) -> list[str]:
    return [f"{rows:,} {'row' if rows == 1 else 'rows'} without a target left out"] if rows else []


def _label(level: str, kind: pa.DataType) -> Label:
    if pa.types.is_boolean(kind):
        return level == "true"
    return int(level) if is_number(kind) else level
