"""Writing a table chunk by chunk to a temporary file, which is renamed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from bayesadam.files import whole_file
from bayesadam.tabular.open import is_parquet


@contextmanager
def table_writer(path: Path) -> Iterator[Callable[[pa.Table], None]]:
    """Context with a function that appends a table. The complete file appears at the end, unless there was an error.

    Args:
        path: File to write: Parquet if its name ends in ``.parquet`` or ``.pq``, otherwise CSV. An existing file is
            replaced.

    Raises:
        OSError: The file cannot be written. An existing file is not changed.
    """
    sink: list[csv.CSVWriter | parquet.ParquetWriter] = []
    with whole_file(path) as temporary, temporary.open("wb") as file:

        def write(table: pa.Table) -> None:
            if not sink:
                sink.append((parquet.ParquetWriter if is_parquet(path) else csv.CSVWriter)(file, table.schema))
            sink[0].write_table(table)

        try:
            yield write
        finally:
            for writer in sink:
                writer.close()
