"""Missing values of a file: NaN, and the texts that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.scaling import LARGEST
from bayesadam.tabular.numbers import as_text, is_text
from bayesadam.tabular.written import read_numbers

_VIEWS = {"string_view": pa.string(), "binary_view": pa.binary()}
"""Types of which Arrow cannot take rows, and those that replace them."""


def cleaned(column: pa.ChunkedArray, missing: Sequence[str]) -> pa.ChunkedArray:
    """Return a column in which NaN and the given texts are missing values.

    White space around a text does not count. A number that is too large to be used is recognised in any form: "inf" is
    also "Infinity", and "1e+99" is also 1E99.

    Args:
        column: Values of the column, as they are in the file.
        missing: Texts that mean a missing value.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    kind = _VIEWS.get(str(kind), kind)
    column = column if column.type == kind else column.cast(kind)
    marks, large = _marks(tuple(missing))
    if is_text(kind) and len(marks):
        text = as_text(column)
        unknown = compute.is_in(text, value_set=marks)
        values = read_numbers(text).values if len(large) else None
    elif pa.types.is_floating(kind):
        unknown = compute.is_nan(column)
        values = column.to_numpy() if len(large) else None
    else:
        return column
    if values is not None:
        unknown = compute.or_(unknown, pa.array(np.isin(values, large)))
    return compute.if_else(unknown, None, column)


@cache
def _marks(missing: tuple[str, ...]) -> tuple[pa.Array, NDArray[np.float64]]:
    """Return the texts without white space around them, and the numbers among them that are too large to be used."""
    marks = pa.array([text.strip() for text in missing], pa.string())
    numbers = read_numbers(marks).values
    return marks, numbers[np.abs(numbers) > LARGEST]
