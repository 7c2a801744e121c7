"""Columns of numbers in any type of storage."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.scaling import LARGEST
from bayesadam.tabular.errors import Place, TableError, row_place
from bayesadam.tabular.written import read_numbers

FEW_TEXTS = 3
"""Maximum number of different texts that an error proposes to treat as missing values."""


def as_numbers(
    column: pa.ChunkedArray, name: str, place: Place = row_place, decimal: str = ".", unit: str | None = None
) -> NDArray[np.float64]:
    """Convert a column to float64, with nan for missing values.

    Args:
        column: Numbers, truth values, durations (converted to seconds), or text with numbers.
        name: Name of the column.
        place: Function that returns the place of a row for the message.
        decimal: Decimal mark of text, "." or ",".
        unit: Unit that numbers in text may have, for example "$"; ``None`` allows any unit.

    Raises:
        TableError: A value is text, infinite, or in another unit. The message names the value and its place.
    """
    if is_text(column.type):
        values = _read(as_text(column), name, place, decimal, unit)
    elif pa.types.is_duration(column.type):
        values = column.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.float64()).to_numpy() / 1e6
    elif is_number(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        values = column.cast(pa.float64(), safe=False).to_numpy()
    else:
        raise TableError(f"column {name!r} must be a number in every row, got the type {column.type}")
    beyond = np.flatnonzero(np.abs(values) > LARGEST)
    if len(beyond):
        row = int(beyond[0])
        message = f"column {name!r} must be finite (below {LARGEST:g}), got {values[row]:g} in {place(row)}"
        texts = tuple(map(repr, np.unique(values[beyond]).tolist()))
        raise TableError(message, **({"missing": texts} if len(texts) <= FEW_TEXTS else {"drop": (name,)}))
    return values


def _read(text: pa.ChunkedArray, name: str, place: Place, decimal: str, unit: str | None) -> NDArray[np.float64]:
    if decimal == ".":
        with suppress(pa.ArrowInvalid):  # most columns have only numbers as programs write them
            values: NDArray[np.float64] = text.cast(pa.float64()).to_numpy()
            return values
    found = read_numbers(text, decimal)
    wrong = found.odd
    if unit is not None:
        wrong = wrong | ~(np.isnan(found.values) | np.isin(found.units.astype(str), ("", unit)))
    if wrong.any():
        row = int(wrong.argmax())
        rule = "a number" if found.odd[row] else f"a number in {unit!r}" if unit else "a number without a unit"
        other = "," if decimal == "." else "."
        if found.odd[row] and not read_numbers(pa.array([text[row].as_py()]), other).odd[0]:
            rule += f" with a decimal {'point' if decimal == '.' else 'comma'}"
        raise TableError(f"column {name!r} must be {rule} in every row, got {text[row].as_py()!r} in {place(row)}")
    return found.values


def as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to text without white space around it; truth values become "true" and "false"."""
    return compute.utf8_trim_whitespace(column.cast(pa.string()))


def levels_of(column: pa.ChunkedArray) -> pa.Array:
    """Return the different texts of a column, in the order of their first rows."""
    return as_text(column).unique().drop_null()


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is text, or categories of text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view")


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is integers, floats, decimals, or categories of numbers."""
    if pa.types.is_dictionary(kind):
        return is_number(kind.value_type)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def count_different(column: pa.ChunkedArray, numbers: NDArray[np.float64]) -> int:
    """Return how many different values a column has; ``numbers`` are its values, which may be equal above 2**53."""
    if pa.types.is_integer(column.type) or pa.types.is_decimal(column.type):
        return len(column.drop_null().unique())
    return len(np.unique(numbers[~np.isnan(numbers)]))


def are_integers(values: NDArray[Any]) -> bool:
    """Whether all values that are not nan are whole numbers."""
    return bool((values[~np.isnan(values)] % 1 == 0).all())
