"""The values of columns as people see them, and notes on how they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tables.encoder.column_types import MIN_ROWS, Category, Column, Number
from bayesadam.tables.encoder.csv_numbers import NUMBER, as_text, flags, is_number, is_text, numbers_in, read_numbers
from bayesadam.tables.encoder.dates import Date, are_cells, as_times, order_of
from bayesadam.tables.encoder.findings import Place


def values_of(column: Column, values: pa.ChunkedArray) -> Any:
    """Return the values of an input as numbers, dates or texts, as people see them."""
    if isinstance(column, Number):
        return numbers_in(values, column.decimal, column.unit)
    if isinstance(column, Date):
        return as_times(values, column.order)
    return pd.array([None if value is None else str(value) for value in values.to_pylist()], dtype="object")


def notes(column: Column, values: pa.ChunkedArray, place: Place, *, day_first: bool = False) -> list[str]:
    """Return notes, with examples, on guesses about a column.

    Args:
        column: The type of the column.
        values: Values of the rows.
        place: Function that returns the place of a row.
        day_first: Whether 3/4/2021 is in April, if the column is ambiguous.
    """
    name = column.name
    if isinstance(column, Number):
        numbers = numbers_in(values, column.decimal, column.unit)
        return number_notes(name, values, place, column.decimal) + code_notes(name, numbers, place)
    if isinstance(column, Date) and is_text(values.type) and not column.order.startswith(("year", "time")):
        row = int(are_cells(values).argmax())
        guess = order_of(as_text(values).combine_chunks().drop_null().unique(), day_first=day_first)
        unsure = " (if the day comes first: day_first=True)" if guess and guess[1] else ""
        day = np.datetime_as_string(as_times(values, column.order)[row], unit="D")
        return [f"column {name!r}: {values[row].as_py()!r} in {place(row)} is read as {day}: {column.order}{unsure}"]
    if not isinstance(column, Category):
        return []
    lines = []
    if is_number(values.type):
        lines = [f"column {name!r} is a category (if it is a quantity: keep=[{name!r}])"]
    elif is_text(values.type):
        lines = _nearly_numbers(name, as_text(values).combine_chunks(), place)
    if column.other:
        lines.append(f"column {name!r}: levels of fewer than {MIN_ROWS} training rows are taken together as 'other'")
    return lines


def number_notes(name: str, values: pa.ChunkedArray, place: Place, decimal: str) -> list[str]:
    """Return a note, with an example, on numbers that are written in an unusual way; otherwise an empty list.

    Args:
        name: Name of a column of numbers.
        values: Values of the rows.
        place: Function that returns the place of a row.
        decimal: Decimal mark.
    """
    if not is_text(values.type):
        return []
    text = as_text(values).combine_chunks()
    read, said = read_numbers(text, decimal), []
    usual = NUMBER if decimal == "." else r"[+-]?\d+"
    special = ~flags(compute.match_substring_regex(text, f"^({usual})$")) & ~np.isnan(read.values)
    if special.any():
        row = int(special.argmax())
        share = "" if special.all() else f", as {int(special.sum()):,} of {len(text):,} are written"
        said.append(f"{text[row].as_py()!r} in {place(row)} is read as {read.values[row]:.15g}{share}")
    for mark in compute.unique(text.filter(pa.array(read.marked))).to_pylist():
        where = flags(compute.equal(text, mark))
        count = int(where.sum())
        rows = "1 row" if count == 1 else f"{count:,} rows"
        said.append(f"{mark!r} in {place(int(where.argmax()))} means a missing value ({rows})")
    return [f"column {name!r}: {'; '.join(said)}"] if said else []


def _nearly_numbers(name: str, text: pa.Array, place: Place) -> list[str]:
    """Return a note on a text for which a column of numbers is a category, such as 6.0 among decimal commas."""
    read, mark = max(
        ((read_numbers(text, mark), mark) for mark in (".", ",")), key=lambda pair: np.isfinite(pair[0].values).sum()
    )
    odd = int(read.odd.sum())
    if not odd or not np.isfinite(read.values).sum() > odd:
        return []
    row = int(read.odd.argmax())
    rule = f"no number with the decimal mark {mark!r} ({odd:,} of {len(text):,} cells are none)"
    return [f"column {name!r} is a category, as {text[row].as_py()!r} in {place(row)} is {rule}"]


def code_notes(name: str, numbers: NDArray[np.float64], place: Place) -> list[str]:
    """Return a note on -999 or the like, if it is farther from all other values than they are from each other."""
    for end in {np.nanmin(numbers), np.nanmax(numbers)}:
        others = numbers[~np.isnan(numbers) & (numbers != end)]
        if len(others) and np.abs(others - end).min() > np.ptp(others) and set(f"{abs(end):g}") == {"9"}:
            where = numbers == end
            rows = f"{end:g} in {place(int(where.argmax()))} ({int(where.sum()):,} of {len(numbers):,} rows)"
            advice = f"if it means a missing value: missing=['{end:g}']"
            return [f"column {name!r}: {rows} is far from all others; {advice}"]
    return []
