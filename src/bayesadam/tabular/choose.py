"""Which columns are inputs: what each is taken for, and why some are left out."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tabular.columns import MIN_ROWS, Category, Column, Number, Truth, level_counts
from bayesadam.tabular.errors import Place, TableError
from bayesadam.tabular.numbers import NUMBER, are_integers, as_numbers, as_text, is_number, is_text, refuse_foreign

MAX_LEVELS = 100
"""A column of text with more levels than this is left out."""

_IDENTIFIER = re.compile(
    r"(?i:(^|[_\s.-])(id|uuid|guid|index|__index_level_\d+__|row[_\s]?(id|no|nr|number|names?)))$|[a-z](Id|ID)$"
)
_KEEP = " (if it is an input: --keep)"
_DATE = r"^\s*(\d{1,4}[-/.]\d{1,2}[-/.]\d{2,4}|\d{4}-\d{2}-\d{2})([ T]\d{1,2}:\d{2}.*)?\s*$"


@dataclass(frozen=True)
class LeftOut:
    """A column that is no input, and why."""

    reason: str


@dataclass(frozen=True)
class Date:
    """A column of dates or times, which the user has to make numbers of; with one of its values."""

    example: str


def choose(name: str, column: pa.ChunkedArray, place: Place, *, keep: bool = False) -> Column | LeftOut | Date:
    """What a column of training rows is taken for.

    Args:
        name: Of the column.
        column: Its values.
        place: Where a row is, for messages.
        keep: Numbers are an input even if they look like numbers of the rows or identifiers.

    Raises:
        TableError: A number is infinite, or a column of numbers has some text.
    """
    kind, known = column.type, column.drop_null()
    if not len(known):
        return LeftOut("all its values are missing")
    if pa.types.is_temporal(kind):
        return Date(str(known[0].as_py()))
    if pa.types.is_boolean(kind):
        constant = not column.null_count and len(known.unique()) == 1
        return LeftOut(_constant(known)) if constant else Truth.fit(column, name, place)
    if is_number(kind):
        return _choose_number(name, column, place, keep)
    if is_text(kind):
        return _choose_text(name, column, place, keep)
    return LeftOut(f"it is of the type {kind}, which is neither numbers nor text")


def _choose_number(name: str, column: pa.ChunkedArray, place: Place, keep: bool) -> Column | LeftOut:
    values = as_numbers(column, name, place)
    known = values[~np.isnan(values)]
    if known.min() == known.max() and len(known) == len(values):
        return LeftOut(_constant(column))
    if are_integers(known) and not keep:
        if _numbers_rows(values):
            return LeftOut("it numbers the rows" + _KEEP)
        if _IDENTIFIER.search(name):
            distinct = len(np.unique(known))
            if distinct > MAX_LEVELS or distinct * MIN_ROWS > len(known):
                return LeftOut(f"it is an identifier by its name, with {distinct:,} different values" + _KEEP)
            if pa.types.is_integer(column.type):
                return Category.fit(column, name, place)
    return Number.fit(column, name, place)


def _choose_text(name: str, column: pa.ChunkedArray, place: Place, keep: bool) -> Column | LeftOut | Date:
    counts = level_counts(column)
    levels, rows = pa.array(list(counts), pa.string()), sum(counts.values())
    if compute.all(compute.match_substring_regex(levels, _DATE)).as_py():
        return Date(next(iter(counts)))
    if len(counts) == 1 and not column.null_count:
        return LeftOut(_constant(column))

    def place_of(level: int) -> str:
        return place(compute.index(as_text(column), levels[level]).as_py())

    refuse_foreign(name, levels, place_of)
    if 2 * len(counts) <= rows and len(counts) <= MAX_LEVELS and max(counts.values()) >= MIN_ROWS:
        return Category.fit(column, name, place)
    numbers = compute.match_substring_regex(levels, f"^({NUMBER})$")
    if compute.mean(numbers).as_py() > 0.5:
        odd = compute.index(numbers, pa.scalar(False)).as_py()
        if odd < 0:
            return _choose_number(name, pa.chunked_array([as_numbers(column, name, place)]), place, keep)
        raise TableError(
            f"column {name!r} must be numbers or text, got {levels[odd].as_py()!r} among numbers in {place_of(odd)}: "
            f"leave the cell empty if that means a missing value, or --drop {name!r}"
        )
    if len(counts) == rows:
        return LeftOut("it is text that is different in every row, like a name or an identifier")
    return LeftOut(f"it is text with {len(counts):,} different values in {rows:,} rows")


def _constant(column: pa.ChunkedArray) -> str:
    return f"it is the same in all training rows ({column[0].as_py()!r})"


def _numbers_rows(values: NDArray[np.float64]) -> bool:
    """Whether the values count from 0 or 1, with gaps where rows are held out; a column of years does not."""
    few = 10
    starts, ends = 0 <= values[0] <= few, values[-1] < 2 * len(values) + few
    return bool(len(values) > 2 * few and starts and ends and (np.diff(values) > 0).all())
