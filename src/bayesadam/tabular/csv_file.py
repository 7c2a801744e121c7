"""CSV files: the types of the columns are found while reading, and mistakes are named by line and column."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from pyarrow import csv as arrow_csv

from bayesadam.tabular.errors import TableError
from bayesadam.tabular.file import CHUNK_ROWS, TableFile, unreadable
from bayesadam.tabular.numbers import NUMBER, refuse_foreign

_BLOCK = 8 * 2**20
_OTHER_DELIMITERS = (";", "\t", "|", ",")
_CONVERSION = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to ([^:]+): (?:invalid value '(.*)')?", re.DOTALL
)
_RAGGED = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_WIDER = {"null": pa.int64(), "int64": pa.float64(), "date32[day]": pa.timestamp("s")}


class CsvFile(TableFile):
    """Text in UTF-8, compressed or not, with the columns' names in its first line.

    Args:
        path: Of the file.
        delimiter: Between the cells; ``None``: a tab if the name ends in ".tsv" or ".tab", else a comma.

        decimal: The decimal mark, ``"."`` or ``","``; ``None``: a point.

    Raises:
        TableError: There are no names in the first line, or another delimiter; and as the base class.
    """

    first_line = 2
    unit = "line"

    def __init__(self, path: Path, delimiter: str | None = None, decimal: str | None = None) -> None:
        tabs = any(suffix in (".tsv", ".tab") for suffix in path.suffixes)
        self.delimiter, self.decimal = delimiter or ("\t" if tabs else ","), decimal or "."
        if self.decimal not in (".", ",") or self.decimal == self.delimiter:
            raise TableError(f"--decimal must be '.' or ',' and not the --delimiter, got {self.decimal!r}")
        names = _header(path, self.delimiter)
        if len(names) == 1:
            for other in _OTHER_DELIMITERS:
                if other in names[0]:
                    raise TableError(
                        f"{path} must have columns separated by {self.delimiter!r}, got one column, "
                        f"{_short(names[0])!r}: say --delimiter {other!r}"
                    )
        if all(re.fullmatch(NUMBER, name.strip()) for name in names) and not _counted(names):
            raise TableError(f"{path} must have the columns' names in its first line, got the numbers {names[:3]}")
        self._raw = names
        super().__init__(path, names)

    def read(self) -> pa.Table:
        """See the base class."""
        types: dict[str, pa.DataType] = {}
        while True:  # a type is found from the first rows: where a later value does not fit, again with a wider one
            try:
                return self._read(types)
            except OSError as error:
                raise unreadable(self.path, error) from None
            except pa.ArrowInvalid as error:
                match = _CONVERSION.search(str(error))
                if not match or match[4] is None:
                    self._refuse(error)
                types[self._raw[int(match[1])]] = _WIDER.get(match[3], pa.string())

    def _read(self, types: Mapping[str, pa.DataType]) -> pa.Table:
        parts: list[pa.RecordBatch] = []
        reader = self._open(types, None)
        for batch in reader:
            if not parts:  # the blocks of text are alike, so the first says how large the table will be
                self._require_room(batch.nbytes * max(self.path.stat().st_size / _BLOCK, 1.0))
            parts.append(batch)
        if any(pa.types.is_binary(field.type) for field in reader.schema):
            raise TableError(f"{self.path} must be text in UTF-8")
        return self._whole(parts, reader.schema)

    def chunks(self, types: Mapping[str, pa.DataType | None]) -> Iterator[tuple[int, pa.Table]]:
        """See the base class."""
        raw = dict(zip(self.columns, self._raw, strict=True))
        first = 0
        try:
            read_as = {raw[name]: kind or pa.string() for name, kind in types.items()}
            for batch in self._open(read_as, list(read_as)):
                table = pa.Table.from_batches([batch]).rename_columns(list(types))
                for start in range(0, len(batch), CHUNK_ROWS):
                    part = table.slice(start, CHUNK_ROWS)
                    yield first, part
                    first += len(part)
        except OSError as error:
            raise unreadable(self.path, error) from None
        except pa.ArrowInvalid as error:
            self._refuse(error)

    def _open(self, types: Mapping[str, pa.DataType], columns: list[str] | None) -> arrow_csv.CSVStreamingReader:
        return arrow_csv.open_csv(
            pa.input_stream(self.path, compression="detect"),
            # One thread: with several, errors do not say in which line they are.
            read_options=arrow_csv.ReadOptions(block_size=_BLOCK, use_threads=False),
            parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict(types),
                include_columns=columns,
                strings_can_be_null=True,
                decimal_point=self.decimal,
            ),
        )

    def _refuse(self, error: pa.ArrowInvalid) -> NoReturn:
        """Arrow's message in our words."""
        text = str(error)
        if match := _CONVERSION.search(text):
            name = self.columns[int(match[1])]
            if match[4] is None:
                raise TableError(f"{self.path} must be text in UTF-8, which column {name!r} is not") from None
            rule = "a number" if match[3] == "double" else f"of type {match[3]}"
            where = f" in line {match[2]}" if match[2] else ""
            if match[3] == "double":
                refuse_foreign(name, pa.array([match[4]]), lambda _: where.removeprefix(" in ") or "a row")
            raise TableError(f"{self.path}: column {name!r} must be {rule} in every row, got {match[4]!r}{where}")
        if match := _RAGGED.search(text):
            where = f"line {match[1]}" if match[1] else "every line"
            raise TableError(f"{self.path}: {where} must have {match[2]} values, as the header has, got {match[3]}")
        if "straddl" in text:
            raise TableError(f"{self.path}: no value may be longer than 8 MB; is a quotation mark not closed?")
        raise TableError(f"{self.path} must be a CSV file ({text.splitlines()[0]})")


def _header(path: Path, delimiter: str) -> list[str]:
    if len(delimiter) != 1:
        raise TableError(f"--delimiter must be one character, got {delimiter!r}")
    try:
        with pa.input_stream(path, compression="detect") as stream:
            content = stream.read(2**20)
        text = content.decode("utf-8-sig", errors="strict" if len(content) < 2**20 else "ignore")
    except UnicodeDecodeError:
        raise TableError(f"{path} must be text in UTF-8, or a Parquet file") from None
    except OSError as error:
        raise TableError(f"{path} must be a CSV or Parquet file ({error})") from None
    if "\0" in text:
        raise TableError(f"{path} must be a CSV or Parquet file, got neither text nor Parquet")
    lines = text.lstrip("\r\n").splitlines(keepends=True)
    if not text.strip():
        raise TableError(f"{path} must be a CSV or Parquet file, got an empty file")
    try:
        return next(csv.reader(lines, delimiter=delimiter))
    except (csv.Error, StopIteration) as error:
        raise TableError(f"{path} must have the columns' names in its first line ({error})") from None


def _short(name: str, most: int = 30) -> str:
    return name if len(name) <= most else name[:most] + "..."


def _counted(names: list[str]) -> bool:
    """Whether the names are 0, 1, 2, ..., as of an array that was written without names."""
    return names in ([str(i + start) for i in range(len(names))] for start in (0, 1))
