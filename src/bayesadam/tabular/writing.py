"""Tables written chunk by chunk, to a temporary name that becomes the real one at the end."""

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
    """Gives the function that appends a table; the file is there, complete, when the block is left without an error.

    Args:
        path: Parquet if its name says so, else CSV. A file that is there is replaced.

    Raises:
        OSError: It cannot be written; what was there is left as it was.
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
