"""The choice of inputs: how each column is interpreted, and the reasons why columns are left out."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bayesadam.tabular.columns import (
    MAX_LEVELS,
    MIN_ROWS,
    Category,
    Column,
    Number,
    Truth,
    have_few_levels,
    level_counts,
    odd_texts,
)
from bayesadam.tabular.dates import Date, order_of
from bayesadam.tabular.errors import Place, TableError, quoted
from bayesadam.tabular.numbers import are_integers, as_numbers, count_different, is_number, is_text
from bayesadam.tabular.target import FEW
from bayesadam.tabular.written import are_plain, read_numbers

_IDENTIFIER = re.compile(
    r"(?i:(^|[_\s.-])(id|uuid|guid|row[_\s]?(id|no|nr|number|names?|index)))$|(?i:^(index|__index_level_\d+__)$)|[a-z](Id|ID)$"
)
_YEARS = 1500, 2200
_OWN = 0.9
"""Minimum share of different values in a column of row numbers; equal values belong to copies of rows."""
_KEEP = " (if it is an input: `keep`)"


@dataclass(frozen=True)
class LeftOut:
    """A column that is not an input.

    Attributes:
        reason: The reason why it is left out.
        may_be_kept: Whether the user can make it an input.
    """

    reason: str
    may_be_kept: bool = False


def choose(
    name: str,
    column: pa.ChunkedArray,
    place: Place,
    *,
    whole: pa.ChunkedArray | None = None,
    whole_place: Place | None = None,
    keep: bool = False,
    decimal: str = ".",
    day_first: bool = False,
) -> Column | LeftOut:
    """Choose the interpretation of a column from its training rows, and whether text is numbers or dates from all rows.

    Args:
        name: Name of the column.
        column: Values of the training rows.
        place: Function that returns the place of a training row for messages.
        whole: Values of all rows, including those held out; by default those of the training rows.
        whole_place: Function that returns the place of one of all rows.
        keep: Whether numbers are an input even if they look like row numbers or identifiers.
        decimal: Decimal mark of numbers that are text.
        day_first: Whether 3/4/2021 is in April, if the column is ambiguous.

    Raises:
        TableError: A number is infinite, or a column of numbers or dates has some other text.
    """
    kind, known = column.type, column.drop_null()
    if not len(known):
        return LeftOut("all its values are missing")
    if is_number(kind) or pa.types.is_duration(kind):
        return _choose_number(name, column, place, keep, decimal)
    if pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        if not column.null_count and len(known.unique()) == 1:
            return LeftOut(_constant(known))
        return (Truth if pa.types.is_boolean(kind) else Date).fit(column, name, place)
    if is_text(kind):
        everything = (column, place) if whole is None else (whole, whole_place or place)
        return _choose_text(name, column, place, *everything, keep, decimal, day_first)
    return LeftOut(f"it is of the type {kind}, which is neither numbers nor text")


def numbers_rows(column: pa.ChunkedArray) -> bool:
    """Whether a column numbers the rows, possibly with gaps for held-out rows and with equal numbers for copies.

    A column of years may look like this, but is an input.
    """
    if not is_number(column.type):
        return False
    values = column.cast(pa.float64(), safe=False).to_numpy()
    if not np.isfinite(values).all() or not are_integers(values):
        return False
    few = 10
    _, first = np.unique(values, return_index=True)
    own = values[np.sort(first)]
    if len(own) <= max(2 * few, _OWN * len(values)) or (np.diff(own) <= 0).any():
        return False
    years = _YEARS[0] <= own[0] and own[-1] <= _YEARS[1]
    return bool(0 <= own[0] and own[-1] - own[0] < 2 * len(own) + few and not years)


def _choose_number(
    name: str, column: pa.ChunkedArray, place: Place, keep: bool, decimal: str = ".", unit: str = ""
) -> Column | LeftOut:
    values = as_numbers(column, name, place, decimal, unit)
    known = values[~np.isnan(values)]
    if not len(known):
        return LeftOut("all its values are missing")
    if known.min() == known.max() and len(known) == len(values):
        if (count := count_different(column, values)) > 1:
            return LeftOut(f"its {count:,} different values cannot be told apart in double precision")
        return LeftOut(_constant(column))
    if are_integers(known) and not keep:
        if numbers_rows(pa.chunked_array([values])):
            start = "" if values[0] <= 1 else f", from {values[0]:.0f} on"
            return LeftOut(f"it numbers the rows{start}{_KEEP}", may_be_kept=True)
        if _IDENTIFIER.search(name):
            distinct = count_different(column, values)
            if distinct > MAX_LEVELS or distinct * MIN_ROWS > len(known):
                reason = f"it is an identifier by its name, with {distinct:,} different values{_KEEP}"
                return LeftOut(reason, may_be_kept=True)
            if pa.types.is_integer(column.type):
                return Category.fit(column, name, place)
    return Number.fit(column, name, place, decimal, unit)


def _choose_text(
    name: str,
    column: pa.ChunkedArray,
    place: Place,
    whole: pa.ChunkedArray,
    whole_place: Place,
    keep: bool,
    decimal: str,
    day_first: bool,
) -> Column | LeftOut:
    counts = level_counts(column)
    levels = pa.array(list(counts if whole is column else level_counts(whole)), pa.string())
    rows = sum(counts.values())
    if len(counts) == 1 and not column.null_count:
        return LeftOut(_constant(column))

    def refuse(rule: str, odd: NDArray[np.bool_]) -> TableError:
        texts = levels.filter(pa.array(odd))
        return odd_texts(f"column {name!r} must be {rule}", whole, texts, whole_place, drop=(name,))

    if found := order_of(levels, day_first=day_first):
        order, _, odd = found
        if odd.any():
            raise refuse("dates or text", odd)
        return Date.fit(column, name, place, order)
    reading = read_numbers(levels, decimal)
    numbers = ~np.isnan(reading.values)
    only_numbers = numbers.any() and not reading.odd.any()
    few = have_few_levels(counts)
    if only_numbers and reading.unit is not None and not (few and decimal == "." and are_plain(levels)):
        return _choose_number(name, column, place, keep, decimal, reading.unit)
    if few and not (only_numbers and reading.unit is None and len(counts) > FEW):
        return Category.fit(column, name, place)
    if only_numbers:
        return LeftOut(f"it is numbers in several units ({quoted(sorted(set(reading.units[numbers])))})")
    if 2 * numbers.sum() > len(levels):
        raise refuse("numbers or text", reading.odd)
    if len(counts) == rows:
        return LeftOut("it is text that is different in every row, like a name or an identifier")
    return LeftOut(f"it is text with {len(counts):,} different values in {rows:,} rows")


def _constant(column: pa.ChunkedArray) -> str:
    return f"it is the same in all training rows ({column[0].as_py()!r})"
