"""A table on disk: opened, looked at, and read whole or chunk by chunk."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from bayesadam.tabular.errors import TableError, quoted
from bayesadam.tabular.memory import require_memory

CHUNK_ROWS = 8192
"""Most rows of a chunk: predictions with all their samples have to fit beside it."""


class TableFile(ABC):
    """A file with a table.

    Args:
        path: Of the file.
        columns: Names of its columns as they stand there.
        missing: Texts that mean a missing value in any column.

    Attributes:
        path: Of the file.
        delimiter: Between the cells of a text file.
        decimal: The decimal mark of a text file, once it is known.
        notes: For the user, about how the file was read.
        columns: The names without white space around them; a column without a name is "column 3", say.

    Raises:
        TableError: Two columns have the same name, or there is none.
    """

    first_line = 1
    """What the file itself would call its first row of data."""
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
        """Where row ``row``, counted from 0, is in the file (blank lines and breaks within cells do not count)."""
        return f"{self.unit} {row + self.first_line}"

    @abstractmethod
    def read(self) -> pa.Table:
        """The whole table, with the types that its values have.

        Raises:
            TableError: The file is damaged, or has no rows.
            NotEnoughMemory: It is too large.
        """

    @abstractmethod
    def chunks(self, types: Mapping[str, pa.DataType | None]) -> Iterator[tuple[int, pa.Table]]:
        """Some of the columns, in chunks of at most ``CHUNK_ROWS`` rows: constant memory.

        Args:
            types: Which columns, and the types that their values must have; ``None``: as they stand there. In CSV
                numbers are text, too: it is the columns that know how theirs are written.

        Yields:
            Number of the chunk's first row, and the chunk.

        Raises:
            TableError: A value is not of its type, or the file is damaged.
        """

    def _whole(self, parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        table = pa.Table.from_batches(parts, schema).rename_columns(list(self.columns))
        if not table.num_rows:
            raise TableError(f"{self.path} must have rows below its header, got none")
        return table

    def _require_room(self, size: float) -> None:
        # Beside the table stand its matrix and what training makes of that: as much again.
        require_memory(2.0 * size, f"reading {self.path}", "use a file with fewer rows or columns")


def check_readable(path: str | os.PathLike[str]) -> Path:
    """The path of a file that is there and holds something.

    Raises:
        TableError: It is not, or it does not.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise TableError(f"{path} must be a CSV or Parquet file, got a folder")
        if not path.exists():
            raise TableError(f"{path} must be a file that exists")
        with path.open("rb") as file:
            if not file.read(1):
                raise TableError(f"{path} must be a CSV or Parquet file, got an empty file")
    except OSError as error:
        raise unreadable(path, error) from None
    return path


def unreadable(path: Path, error: OSError) -> TableError:
    """What to raise where the system, or what unpacks a file, says that it cannot be read."""
    return TableError(f"{path} must be a file that can be read ({error.strerror or str(error).splitlines()[0]})")
