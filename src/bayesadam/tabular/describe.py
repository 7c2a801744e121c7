"""Descriptions of columns in words and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tabular.columns import Category, Column, Number, level_counts
from bayesadam.tabular.dates import Date, as_times, order_of
from bayesadam.tabular.errors import Place, row_place
from bayesadam.tabular.numbers import as_numbers, as_text, is_number, is_text
from bayesadam.tabular.written import NUMBER, decimal_of, read_numbers

_LEVELS = 3


def describe(column: Column, values: pa.ChunkedArray) -> dict[str, Any]:
    """Describe an input by its "name", "kind", "missing" (share of the rows) and "summary".

    Args:
        column: The interpretation of the column.
        values: Values of all rows.
    """
    if isinstance(column, Number):
        numbers = as_numbers(values, column.name, decimal=column.decimal)
        known = numbers[~np.isnan(numbers)]
        low, middle, high = np.quantile(known, [0.0, 0.5, 1.0])
        summary, missing = f"{low:.4g} to {high:.4g}, median {middle:.4g}", 1.0 - len(known) / len(numbers)
    elif isinstance(column, Date):
        times = as_times(values, column.name, row_place, column.order)
        days = times[~np.isnat(times)].astype("datetime64[D]")
        summary, missing = f"{days.min()} to {days.max()}", 1.0 - len(days) / len(times)
    else:
        counts = level_counts(values)
        total = max(sum(counts.values()), 1)
        shown = [f"{level} ({count / total:.0%})" for level, count in list(counts.items())[:_LEVELS]]
        more = f" and {len(counts) - _LEVELS} more" if len(counts) > _LEVELS else ""
        levels = f"{len(counts)} levels: " if isinstance(column, Category) else ""
        summary, missing = levels + ", ".join(shown) + more, values.null_count / len(values)
    return {"name": column.name, "kind": column.kind, "missing": missing, "summary": summary}


def how_read(name: str, values: pa.ChunkedArray, place: Place, decimal: str | None = None) -> list[str]:
    """Return a note, with an example, on numbers that are written in an unusual way; otherwise an empty list.

    Args:
        name: Name of a column of numbers.
        values: Values of all rows.
        place: Function that returns the place of a row.
        decimal: Decimal mark; with ``None`` it is found from the text.
    """
    if not is_text(values.type):
        return []
    text = as_text(values).combine_chunks()
    decimal = decimal or decimal_of(text.unique().drop_null()) or "."
    found, said = read_numbers(text, decimal), []
    usual = NUMBER if decimal == "." else r"[+-]?\d+"
    special = ~_matches(text, f"^({usual})$") & ~np.isnan(found.values)
    if special.any():
        row = int(special.argmax())
        share = "" if special.all() else f", as {int(special.sum()):,} of {len(text):,} are written"
        said.append(f"{text[row].as_py()!r} in {place(row)} is read as {found.values[row]:.15g}{share}")
    for mark in compute.unique(text.filter(pa.array(found.marked))).to_pylist():
        where = compute.fill_null(compute.equal(text, mark), False).to_numpy(zero_copy_only=False)
        count = int(where.sum())
        rows = "1 row" if count == 1 else f"{count:,} rows"
        said.append(f"{mark!r} in {place(int(where.argmax()))} means a missing value ({rows})")
    return [f"column {name!r}: {'; '.join(said)}"] if said else []


def why_category(name: str, values: pa.ChunkedArray, place: Place) -> list[str]:
    """Return a note on the name or the text that makes a column of numbers a category; otherwise an empty list.

    Args:
        name: Name of a category.
        values: Values of all rows.
        place: Function that returns the place of a row.
    """
    if is_number(values.type):
        return [f"column {name!r} is a category, as it is an identifier by its name (if it is a quantity: `keep`)"]
    if not is_text(values.type):
        return []
    text = as_text(values).combine_chunks()
    levels = text.unique().drop_null()
    found = read_numbers(levels, decimal_of(levels) or ".")
    odd = levels.filter(pa.array(found.odd)).to_pylist()
    if not odd or 2 * int((~np.isnan(found.values)).sum()) <= len(levels):
        return []
    where = place(compute.index(text, odd[0]).as_py())
    more = "" if len(odd) == 1 else f" and {len(odd) - 1} other text{'s' * (len(odd) > 2)}"
    return [
        f"column {name!r} is a category, as {odd[0]!r} in {where}{more} is no number "
        f"(if it means a missing value: `missing` {odd[0]!r})"
    ]


def how_dated(column: Date, values: pa.ChunkedArray, place: Place, *, day_first: bool = False) -> list[str]:
    """Return a note on how dates that are text are read; for other columns an empty list."""
    if not is_text(values.type) or column.order.startswith(("year", "time")):
        return []
    text = as_text(values).combine_chunks()
    row = int(text.is_valid().to_numpy(zero_copy_only=False).argmax())
    time = as_times(values, column.name, place, column.order)[row]
    found = order_of(text.drop_null().unique(), day_first=day_first)
    guess = " (if the day comes first: `day_first`)" if found and found[1] else ""
    return [
        f"column {column.name!r}: {text[row].as_py()!r} in {place(row)} is read as "
        f"{np.datetime_as_string(time, unit='D')}: {column.order}{guess}"
    ]


def _matches(text: pa.Array, pattern: str) -> NDArray[np.bool_]:
    found = compute.fill_null(compute.match_substring_regex(text, pattern), False)
    matches: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return matches
