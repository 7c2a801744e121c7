"""The base class of table files, which are read as a whole or chunk by chunk."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from bayesadam.tabular.cleaning import cleaned
from bayesadam.tabular.errors import TableError, quoted
from bayesadam.tabular.memory import require_memory

CHUNK_ROWS = 8192
"""Maximum number of rows of a chunk. The predictions with all their samples must fit into memory as well."""


class TableFile(ABC):
    """A file with a table.

    Args:
        path: Path of the file.
        columns: Names of the columns in the file.
        missing: Texts that mean a missing value in any column.

    Attributes:
        path: Path of the file.
        delimiter: Delimiter between the cells of a text file.
        decimal: Decimal mark of a text file, once it is known.
        notes: Notes for the user on how the file was read.
        columns: Names of the columns without white space around them. Columns without a name are called "column 3", for
            example.

    Raises:
        TableError: Two columns have the same name, or there are no columns.
    """

    first_line = 1
    """Number of the first row of data in the file, as the user counts."""
    unit = "row"
    delimiter: str | None = None
    decimal: str | None = None

    def __init__(self, path: Path, columns: Sequence[str], missing: Sequence[str] = ()) -> None:
        self.path, self.missing = path, tuple(missing)
        self.notes: list[str] = []
        self.columns = tuple(name.strip() or f"column {i + 1}" for i, name in enumerate(columns))
        twice = [name for i, name in enumerate(self.columns) if name in self.columns[:i]]
        if twice:
            raise TableError(f"{path}: every column must have a name of its own, got {quoted(twice)} more than once")
        if not columns:
            raise TableError(f"{path} must have columns, got none")

    def place(self, row: int) -> str:
        """Return the place of a row, counted from 0, in the file; blank lines and breaks within cells do not count."""
        return f"{self.unit} {row + self.first_line}"

    @abstractmethod
    def read(self) -> pa.Table:
        """Read the whole table, with the types of its values.

        Raises:
            TableError: The file is damaged, or has no rows.
            NotEnoughMemory: The table is too large.
        """

    @abstractmethod
    def chunks(self, types: Mapping[str, pa.DataType | None]) -> Iterator[tuple[int, pa.Table]]:
        """Read some of the columns in constant memory, in chunks of at most ``CHUNK_ROWS`` rows.

        Args:
            types: Types of the values, by the names of the columns to read. With ``None`` they are those of the file.
                In a CSV file, numbers are read as text, because only the columns know how their numbers are written.

        Yields:
            Index of the chunk's first row, and the chunk.

        Raises:
            TableError: A value does not have its type, or the file is damaged.
        """

    def _cleaned(self, table: pa.Table) -> pa.Table:
        """Replace NaN and the texts in ``missing`` by missing values."""
        columns = [cleaned(column, self.missing) for column in table.columns]
        return pa.table(columns, names=table.column_names)

    def _no_rows(self) -> TableError:
        return TableError(f"{self.path} must have rows below its header, got none")

    def _require_room(self, size: float) -> None:
        # The matrix of the table and the copies in training need as much memory again.
        require_memory(2.0 * size, f"reading {self.path}", "use a file with fewer rows or columns")


def check_readable(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that exists and is not empty.

    Raises:
        TableError: The file does not exist, is empty, or cannot be read.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise TableError(f"{path} must be a CSV or Parquet file, got a folder")
        if not path.exists():
            raise TableError(f"{path} must be a file that exists")
        if not path.is_file():
            raise TableError(f"{path} must be a regular file, since it is read several times, got a pipe or a device")
        with path.open("rb") as file:
            if not file.read(1):
                raise TableError(f"{path} must be a CSV or Parquet file, got an empty file")
    except OSError as error:
        raise unreadable(path, error) from None
    return path


def unreadable(path: Path, error: OSError) -> TableError:
    """Return the error for a file that the system or the decompression cannot read."""
    return TableError(f"{path} must be a file that can be read ({error.strerror or str(error).splitlines()[0]})")
