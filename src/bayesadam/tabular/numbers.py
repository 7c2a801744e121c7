"""Columns of numbers, whatever they are stored as."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.scaling import LARGEST
from bayesadam.tabular.errors import Place, TableError, row_place

NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(?i:inf|infinity|nan)"
"""A regular expression of a number as text."""

_FOREIGN = r"[+-]?\d+,\d+|[+-]?\d{1,3}([., ]\d{3})+([.,]\d+)?"


def as_numbers(column: pa.ChunkedArray, name: str, place: Place = row_place) -> NDArray[np.float64]:
    """A column as float64, nan where a value is missing.

    Args:
        column: Numbers, truth values, or text that says numbers.
        name: Of the column.
        place: Where a row is, for the message.

    Raises:
        TableError: A value is text or infinite; the message says which and where.
    """
    if is_text(column.type):
        text = as_text(column)
        row = compute.index(compute.match_substring_regex(text, f"^({NUMBER})$"), pa.scalar(False)).as_py()
        if row >= 0:
            refuse_foreign(name, pa.array([text[row].as_py()]), lambda _: place(row))
            raise TableError(
                f"column {name!r} must be a number in every row, got {text[row].as_py()!r} in {place(row)}"
            )
        column = text
    elif not (is_number(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
        raise TableError(f"column {name!r} must be a number in every row, got the type {column.type}")
    values: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy()
    beyond = np.flatnonzero(np.abs(values) > LARGEST)
    if len(beyond):
        row = int(beyond[0])
        raise TableError(f"column {name!r} must be finite (below {LARGEST:g}), got {values[row]:g} in {place(row)}")
    return values


def refuse_foreign(name: str, text: pa.ChunkedArray, place: Place) -> None:
    """Refuse numbers with a decimal comma or thousands separators, which would be taken for text.

    Args:
        name: Of the column.
        text: Values.
        place: Where a row is, for the message.

    Raises:
        TableError: Nearly all values are numbers, and some are written so.
    """
    plain = compute.match_substring_regex(text, f"^({NUMBER})$")
    foreign = compute.and_not(compute.match_substring_regex(text, f"^({_FOREIGN})$"), plain)
    row = compute.index(foreign, pa.scalar(True)).as_py()
    if row < 0 or compute.mean(compute.or_(plain, foreign)).as_py() < 0.9:
        return
    raise TableError(
        f"column {name!r} must be numbers such as 1234.5, got {text[row].as_py()!r} in {place(row)}: --decimal , reads "
        "a decimal comma; thousands separators have to go"
    )


def as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as text without white space around it; truth values are "true" and "false"."""
    return compute.utf8_trim_whitespace(column.cast(pa.string()))


def is_text(kind: pa.DataType) -> bool:
    """Text, or categories that are text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view")


def is_number(kind: pa.DataType) -> bool:
    """Integers, floats, decimals, or categories that are numbers."""
    if pa.types.is_dictionary(kind):
        return is_number(kind.value_type)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def are_integers(values: NDArray[Any]) -> bool:
    """Whether all of some float64 that are not missing are whole numbers."""
    return bool((values[~np.isnan(values)] % 1 == 0).all())
