"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from bayesadam.tabular.errors import TableError
from bayesadam.tabular.file import CHUNK_ROWS, TableFile
from bayesadam.tabular.numbers import is_text


class ParquetFile(TableFile):
    """A Parquet file.

    Args:
        path: Path of the file.
        missing: Texts that mean a missing value in any column.

    Raises:
        TableError: The file is damaged, or the base class raises it.
    """

    def __init__(self, path: Path, missing: Sequence[str] = ()) -> None:
        try:
            self._file = parquet.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise TableError(f"{path} must be a complete Parquet file ({str(error).splitlines()[0]})") from None
        self._raw = self._file.schema_arrow.names
        super().__init__(path, self._raw, missing)

    def read(self) -> pa.Table:
        """Read the whole table, as described in the base class."""
        metadata = self._file.metadata
        self._require_room(sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)))
        try:
            table = self._file.read()
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None
        if not table.num_rows:
            raise self._no_rows()
        return self._cleaned(table.rename_columns(list(self.columns)))

    def chunks(self, types: Mapping[str, pa.DataType | None]) -> Iterator[tuple[int, pa.Table]]:
        """Read the table in chunks, as described in the base class."""
        raw = dict(zip(self.columns, self._raw, strict=True))
        first = 0
        try:
            for batch in self._file.iter_batches(CHUNK_ROWS, columns=[raw[name] for name in types]):
                yield first, self._cast(batch, types, raw)
                first += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None

    def _cast(self, batch: pa.RecordBatch, types: Mapping[str, pa.DataType | None], raw: Mapping[str, str]) -> pa.Table:
        columns = {}
        for name, kind in types.items():
            column = pa.chunked_array([batch.column(raw[name])])
            keep = kind is None or is_text(column.type) or pa.types.is_temporal(column.type)
            columns[name] = column if keep or pa.types.is_floating(kind) else column.cast(kind)
        return self._cleaned(pa.table(columns))

    def _damaged(self, error: Exception) -> TableError:
        return TableError(f"{self.path} must be a complete Parquet file ({str(error).splitlines()[0]})")
