"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from bayesadam.tabular.errors import TableError
from bayesadam.tabular.file import CHUNK_ROWS, TableFile
from bayesadam.tabular.numbers import as_numbers


class ParquetFile(TableFile):
    """A Parquet file.

    Args:
        path: Of the file.

    Raises:
        TableError: It is damaged; and as the base class.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = parquet.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise TableError(f"{path} must be a complete Parquet file ({str(error).splitlines()[0]})") from None
        self._raw = self._file.schema_arrow.names
        super().__init__(path, self._raw)

    def read(self) -> pa.Table:
        """See the base class."""
        metadata = self._file.metadata
        self._require_room(sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)))
        try:
            table = self._file.read()
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None
        return self._whole(table.to_batches(), table.schema)

    def chunks(self, types: Mapping[str, pa.DataType | None]) -> Iterator[tuple[int, pa.Table]]:
        """See the base class."""
        raw = dict(zip(self.columns, self._raw, strict=True))
        first = 0
        try:
            for batch in self._file.iter_batches(CHUNK_ROWS, columns=[raw[name] for name in types]):
                yield first, self._cast(batch, types, raw, first)
                first += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None

    def _cast(
        self, batch: pa.RecordBatch, types: Mapping[str, pa.DataType | None], raw: Mapping[str, str], first: int
    ) -> pa.Table:
        columns = {}
        for name, kind in types.items():
            column = pa.chunked_array([batch.column(raw[name])])
            if kind is None:
                columns[name] = column
            elif pa.types.is_floating(kind):
                columns[name] = pa.chunked_array([as_numbers(column, name, lambda row: self.place(first + row))])
            else:
                columns[name] = column.cast(kind)
        return pa.table(columns)

    def _damaged(self, error: Exception) -> TableError:
        return TableError(f"{self.path} must be a complete Parquet file ({str(error).splitlines()[0]})")
