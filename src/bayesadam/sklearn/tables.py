"""Conversion of data frames and of arrays with text or missing values to tables."""

from __future__ import annotations

import warnings
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from bayesadam.tabular import Inputs


def is_table(X: Any) -> bool:
    """Whether inputs have categories, text, dates or missing values. Numbers and truth values alone need no table."""
    if hasattr(X, "iloc"):  # pandas
        return getattr(X, "ndim", 0) == 2 and not _are_numbers(X)
    if hasattr(X, "__arrow_c_stream__") or hasattr(X, "to_arrow"):
        return any(_is_special(column) for column in _arrow(X).columns)
    if hasattr(X, "toarray"):  # a sparse matrix of SciPy
        return False
    array = _array(X)
    if array.ndim != 2 or array.dtype.kind not in "OUSfM":
        return False
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            return bool(np.vectorize(lambda value: value is None or np.ndim(value) == 0, otypes=[bool])(array).all())
    return array.dtype.kind != "f" or bool(np.isnan(array).any())


def as_table(X: Any, names: list[str]) -> pa.Table:
    """Convert inputs to a table.

    Args:
        X: A data frame of pandas or polars, a table of pyarrow, or anything that NumPy converts to a matrix ``(N, D)``.
        names: Names of the columns.

    Raises:
        ValueError: Two columns have the same name.
    """
    import pyarrow as pa

    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise ValueError(f"X must have a name of its own for every column, got {twice[0]!r} more than once")
    if hasattr(X, "iloc"):
        columns = [_column(X.iloc[:, place]) for place in range(X.shape[1])]
    elif hasattr(X, "__arrow_c_stream__") or hasattr(X, "to_arrow"):
        columns = [_plain_category(column) for column in _arrow(X).columns]
    else:
        columns = [_column(column) for column in _array(X).T]
    return pa.table(dict(zip(names, columns, strict=True)))


def learn_inputs(table: pa.Table, sample_weight: Any = None) -> Inputs:
    """Learn how the columns of a table are interpreted. Every column of numbers is an input.

    Args:
        table: The training rows.
        sample_weight: Weights of the rows. Nothing is learned from rows of weight 0.

    Raises:
        bayesadam.tabular.TableError: A column has infinite values, or text among numbers or dates, or no column is
            left.

    Warns:
        UserWarning: Columns are left out that are not constant.
    """
    from bayesadam.tabular import Inputs

    weight = None if sample_weight is None else np.ravel(np.asarray(sample_weight, dtype=np.float64))
    rows = None if weight is None or weight.shape != (len(table),) else np.flatnonzero(weight > 0)
    found = Inputs.fit(table, rows=rows, keep=None, place="row {}".format)
    left_out = [f"{name!r} ({reason})" for name, reason in found.left_out.items() if "the same" not in reason]
    if left_out:
        warnings.warn(f"columns are left out: {', '.join(left_out)}", UserWarning, stacklevel=5)
    return found


def _are_numbers(frame: Any) -> bool:
    from pandas import CategoricalDtype
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    for place, kind in enumerate(frame.dtypes):
        if isinstance(kind, np.dtype) and kind.kind == "O":
            if is_table(frame.iloc[:, [place]].to_numpy()):
                return False
        elif isinstance(kind, CategoricalDtype) or not (is_numeric_dtype(kind) or is_bool_dtype(kind)):
            return False
    return not frame.isna().to_numpy().any()


def _array(X: Any) -> np.ndarray[Any, Any]:
    if isinstance(X, np.ndarray):
        return X
    try:
        array = np.asarray(X)
    except ValueError:  # scikit-learn has a message for rows of different lengths
        return np.empty(0)
    return array if array.dtype.kind not in "US" else np.asarray(X, dtype=object)


def _arrow(X: Any) -> pa.Table:
    import pyarrow as pa

    if isinstance(X, pa.Table):
        return X
    return X.to_arrow() if hasattr(X, "to_arrow") else pa.table(X)


def _is_special(column: pa.ChunkedArray) -> bool:
    import pyarrow as pa
    from pyarrow import compute

    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return True
    return bool(compute.any(compute.is_null(column, nan_is_null=True)).as_py())


def _column(values: Any) -> pa.ChunkedArray:
    """Convert one column of a data frame or an array. Sparse columns become dense."""
    import pandas as pd
    import pyarrow as pa

    if isinstance(values.dtype, pd.SparseDtype):
        values = values.sparse.to_dense()
    try:
        array = pa.Array.from_pandas(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        array = _objects(values)
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if isinstance(kind, pa.BaseExtensionType):  # for example periods and intervals
        array = _objects(values)
    return _plain_category(array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array]))


def _objects(values: Any) -> pa.Array:
    """Convert objects that pyarrow does not: numbers of several types to float64, and everything else to text."""
    import pandas as pd
    import pyarrow as pa

    present = [None if missing else value for value, missing in zip(values, pd.isna(values), strict=True)]
    numbers = all(value is None or isinstance(value, Real | Decimal) for value in present)
    convert, kind = (float, pa.float64()) if numbers else (str, pa.string())
    return pa.array([None if value is None else convert(value) for value in present], kind)


def _plain_category(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a categorical column to text, so that categories of numbers are not taken for numbers."""
    import pyarrow as pa

    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
