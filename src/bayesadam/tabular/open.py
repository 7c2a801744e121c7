"""``open_table``, which finds out the kind of a file from its name and its content."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bayesadam.tabular.csv_file import CsvFile
from bayesadam.tabular.errors import TableError
from bayesadam.tabular.file import TableFile, check_readable
from bayesadam.tabular.parquet_file import ParquetFile

PARQUET = (".parquet", ".pq")
_MAGIC = b"PAR1"


def is_parquet(path: Path) -> bool:
    """Whether the name of a file ends like that of a Parquet file."""
    return path.suffix.lower() in PARQUET


def open_table(
    path: str | os.PathLike[str],
    delimiter: str | None = None,
    decimal: str | None = None,
    *,
    missing: Sequence[str] = (),
    usual: str | None = None,
) -> TableFile:
    """Open a CSV or a Parquet file.

    Args:
        path: Path of the file.
        delimiter: Delimiter between the cells of a CSV file. With ``None`` it is found.
        decimal: Decimal mark of a CSV file. With ``None`` it is found when the whole file is read.
        missing: Texts that mean a missing value in any column.
        usual: The delimiter that is tried first if none is given.

    Raises:
        TableError: The file is missing or empty, is neither CSV nor Parquet, or its class raises the error.
    """
    path = check_readable(path)
    with path.open("rb") as file:
        parquet = file.read(4) == _MAGIC
    if is_parquet(path) and not parquet:
        raise TableError(f"{path} must be a Parquet file, as its name says, got something else")
    if parquet:
        return ParquetFile(path, missing)
    return CsvFile(path, delimiter, decimal, missing=missing, usual=usual)
