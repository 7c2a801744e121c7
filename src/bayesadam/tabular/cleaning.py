"""Missing values of a file: NaN, and the texts that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tabular.numbers import as_text, is_number, is_text
from bayesadam.tabular.written import read_numbers

_VIEWS = {"string_view": pa.string(), "binary_view": pa.binary()}
"""Types of which Arrow cannot take rows, and those that replace them."""


def cleaned(column: pa.ChunkedArray, missing: Sequence[str]) -> pa.ChunkedArray:
    """Return a column in which NaN and the given texts are missing values.

    White space around a text does not count. A text that is a number means this number in any form: "-999" is also
    -999.0, "inf" is also "Infinity", and "1e+99" is also 1E99.

    Args:
        column: Values of the column, as they are in the file.
        missing: Texts that mean a missing value.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    kind = _VIEWS.get(str(kind), kind)
    column = column if column.type == kind else column.cast(kind)
    marks, numbers = _marks(tuple(missing))
    values = None
    if is_text(kind) and len(marks):
        text = as_text(column)
        unknown = compute.is_in(text, value_set=marks)
        if len(numbers):
            found = read_numbers(text)
            values = np.where(found.units == "", found.values, np.nan)
    elif is_number(kind) and (pa.types.is_floating(kind) or len(numbers)):
        unknown = compute.is_null(column, nan_is_null=True)
        values = column.cast(pa.float64()).to_numpy() if len(numbers) else None
    else:
        return column
    if values is not None:
        unknown = compute.or_(unknown, pa.array(np.isin(values, numbers)))
    return compute.if_else(unknown, None, column)


@cache
def _marks(missing: tuple[str, ...]) -> tuple[pa.Array, NDArray[np.float64]]:
    """Return the texts without white space around them, and the numbers among them."""
    marks = pa.array([text.strip() for text in missing], pa.string())
    numbers = read_numbers(marks).values
    return marks, numbers[~np.isnan(numbers)]
