"""Conversion of data frames and of arrays with text or missing values to tables of pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Complex, Integral, Real
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tables.encoder.csv_numbers import (
    EXACT,
    are_plain,
    as_text,
    beyond_exact,
    flags,
    is_number,
    is_text,
    numbers_in,
    read_numbers,
)


def is_table(X: Any) -> bool:
    """Whether inputs have categories, text, dates, missing values or whole numbers that may be codes, as they are not
    exact in float64. Other numbers and truth values alone need no table.
    """
    if hasattr(X, "toarray"):  # a sparse matrix of SciPy
        return False
    if not _is_frame(X):
        X = _array(X)
        if X.ndim != 2 or X.dtype.kind not in "OUSMfiu":
            return False
        if X.dtype.kind in "fiu":
            return bool(np.isnan(X).any() if X.dtype.kind == "f" else ((EXACT < X) | (-EXACT > X)).any())
        if X.dtype.kind == "O" and any(np.ndim(value) for value in X.flat):  # scikit-learn has a message for these
            return False
    elif getattr(X, "ndim", 2) != 2:
        return False
    return any(_is_special(column) for column in _columns(X)[1])


def as_table(X: Any) -> pa.Table:
    """Convert a data frame of pandas or polars, a table of pyarrow, or a matrix ``(N, D)``, to a table of pyarrow.

    Columns of a matrix are called x0, x1, ...

    Args:
        X: The table.

    Raises:
        ValueError: Two columns have the same name, or a number is complex.
    """
    names, columns = _columns(X)
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise ValueError(f"X must have a name of its own for every column, got {twice[0]!r} more than once")
    return pa.table(dict(zip(names, columns, strict=True)))


def cleaned(table: pa.Table, missing: Sequence[object], decimals: Mapping[str, str]) -> pa.Table:
    """Return a table in which the given texts and numbers are missing values.

    Args:
        table: The table.
        missing: Texts and numbers that mean a missing value in any column, whatever white space is around them. A text
            that is a number means this number in any form: "-999" is also -999.0, and "inf" is any infinite number.
        decimals: Decimal mark of each column.
    """
    columns = {name: _cleaned(table.column(name), missing, decimals[name]) for name in table.column_names if missing}
    return pa.table(columns) if missing else table


def _cleaned(column: pa.ChunkedArray, missing: Sequence[object], decimal: str) -> pa.ChunkedArray:
    texts = [str(value).strip() for value in missing]
    marks = pa.array(texts, pa.string())
    numbers, plain = read_numbers(marks, decimal).values, read_numbers(marks).values
    numbers = np.where(np.isnan(numbers), plain, numbers)
    infinite = any(text.strip(" +-").lower() in ("inf", "infinity") for text in texts)
    if is_text(column.type):
        text = as_text(column)
        read = read_numbers(text, decimal)
        unknown = flags(compute.is_in(text, value_set=marks)) | (np.isin(read.values, numbers) & (read.units == ""))
        if infinite:
            unknown |= flags(compute.match_substring_regex(text, r"^[+-]?(?i:inf|infinity)$"))
    elif is_number(column.type):
        values = column.cast(pa.float64(), safe=False).to_numpy()
        unknown = np.isin(values, numbers[~np.isnan(numbers)]) | (infinite & np.isinf(values))
    else:
        return column
    if not unknown.any():
        return column
    known = compute.if_else(pa.array(unknown), None, column)
    # Numbers that are text because of these marks alone are numbers.
    if pa.types.is_dictionary(column.type) or not is_text(column.type) or not are_plain(as_text(known)):
        return known
    values = numbers_in(known, decimal)
    return known if beyond_exact(known, values).any() else pa.chunked_array([pa.array(values, from_pandas=True)])


def _is_frame(X: Any) -> bool:
    return any(hasattr(X, name) for name in ("iloc", "to_arrow", "__arrow_c_stream__"))


def _columns(X: Any) -> tuple[list[str], list[pa.ChunkedArray]]:
    """Return the names and the columns of a data frame, a table or a matrix."""
    if hasattr(X, "iloc"):
        return [str(name) for name in X.columns], [_column(X.iloc[:, i]) for i in range(X.shape[1])]
    if _is_frame(X):
        table = X.to_arrow() if hasattr(X, "to_arrow") else pa.table(X)
        return list(table.column_names), [_plain(column) for column in table.columns]
    columns = [_column(pd.Series(column)) for column in _array(X).T]
    return [f"x{number}" for number in range(len(columns))], columns


def _array(X: Any) -> NDArray[Any]:
    if isinstance(X, np.ndarray):
        return X
    try:
        array = np.asarray(X)
    except ValueError:  # scikit-learn has a message for rows of different lengths
        return np.empty(0)
    return array if array.dtype.kind not in "US" else np.asarray(X, dtype=object)


def _is_special(column: pa.ChunkedArray) -> bool:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return True
    missing = compute.any(compute.is_null(column, nan_is_null=True)).as_py()
    return bool(missing or beyond_exact(column, numbers_in(column)).any())


def _column(values: pd.Series) -> pa.ChunkedArray:
    """Convert one column of a data frame. Sparse columns become dense, and objects of no type of pyarrow text."""
    if isinstance(values.dtype, pd.SparseDtype):
        values = values.sparse.to_dense()
    try:
        array = pa.Array.from_pandas(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        array = _objects(values)
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if isinstance(kind, pa.BaseExtensionType):  # for example periods and intervals
        array = _objects(values)
    return _plain(array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array]))


def _objects(values: Any) -> pa.Array:
    """Convert objects that pyarrow does not: numbers of several types to float64, and everything else to text, also
    whole numbers that are not exact in float64.
    """
    present = [None if missing else value for value, missing in zip(values, pd.isna(values), strict=True)]
    if any(isinstance(value, Complex) and not isinstance(value, Real) for value in present):
        raise ValueError("Complex data not supported")  # as scikit-learn says
    numbers = all(value is None or isinstance(value, Real | Decimal) for value in present)
    numbers = numbers and not any(isinstance(value, Integral) and abs(int(value)) > EXACT for value in present)
    convert, kind = (float, pa.float64()) if numbers else (str, pa.string())
    return pa.array([None if value is None else convert(value) for value in present], kind)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to a type with all functions, in which NaN and text of nothing but white space are missing.

    Categories become categories of text, so that numbers among them are no numbers.
    """
    if pa.types.is_dictionary(column.type):
        return _plain(column.cast(pa.string())).dictionary_encode()
    if str(column.type) == "string_view":
        column = column.cast(pa.string())
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_floating(column.type):
        return compute.if_else(compute.is_nan(column), None, column)
    if is_text(column.type):  # a database pads text with spaces
        return compute.if_else(compute.equal(compute.utf8_trim_whitespace(column), ""), None, column)
    return column
