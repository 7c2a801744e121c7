"""CSV files. The types of the columns are found while reading, and messages name the line and the column."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from pyarrow import csv as arrow_csv

from bayesadam.tabular.errors import TableError
from bayesadam.tabular.file import CHUNK_ROWS, TableFile, unreadable
from bayesadam.tabular.numbers import is_text, levels_of
from bayesadam.tabular.written import NUMBER, decimal_of

_BLOCK = 8 * 2**20
_MISSING = arrow_csv.ConvertOptions().null_values
_DELIMITERS = (";", "\t", "|", ",")
_CONVERSION = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to ([^:]+): (?:invalid value '(.*)')?", re.DOTALL
)
_RAGGED = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_WIDER = {"null": pa.int64(), "int64": pa.float64(), "date32[day]": pa.timestamp("s")}


class CsvFile(TableFile):
    """Text in UTF-8, Windows-1252 or UTF-16, compressed or not, with the columns' names in its first line.

    Args:
        path: Path of the file.
        delimiter: Delimiter between the cells. With ``None`` it is the usual one, or if this gives a single column, one
            that gives several columns.
        decimal: Decimal mark, ``"."`` or ``","``. With ``None`` it is found by :meth:`read`.
        missing: Texts that mean a missing value in any column.
        usual: The usual delimiter. With ``None`` it is a tab if the name ends in ".tsv" or ".tab", else a comma.

    Raises:
        TableError: The first line has no names, the delimiter is another one than the one given, or the base class
            raises it.
    """

    first_line = 2
    unit = "line"

    def __init__(
        self,
        path: Path,
        delimiter: str | None = None,
        decimal: str | None = None,
        *,
        missing: Sequence[str] = (),
        usual: str | None = None,
    ) -> None:
        tabs = any(suffix in (".tsv", ".tab") for suffix in path.suffixes)
        self.delimiter = delimiter or usual or ("\t" if tabs else ",")
        text, self._encoding = _beginning(path)
        names, notes = _header(path, text, self.delimiter), []
        if len(names) == 1:
            other = max(_DELIMITERS, key=lambda other: len(_header(path, text, other)))
            if other in names[0] and delimiter is None:
                names, self.delimiter = _header(path, text, other), other
                notes.append(f"columns are separated by {other!r}")
            elif other in names[0]:
                raise TableError(
                    f"{path} must have columns separated by {self.delimiter!r}, got one column, {_short(names[0])!r}",
                    delimiter=other,
                )
        if decimal not in (None, ".", ",") or decimal == self.delimiter:
            raise TableError(f"`decimal` must be '.' or ',' and not the `delimiter`, got {decimal!r}")
        if self._encoding != "utf8":
            notes.append(f"the text is read as {self._encoding}, as it is not UTF-8")
        if all(re.fullmatch(NUMBER, name.strip()) for name in names) and not _counted(names):
            raise TableError(f"{path} must have the columns' names in its first line, got the numbers {names[:3]}")
        self._raw = names
        super().__init__(path, names, missing)
        self.decimal = decimal
        self.notes += notes

    def read(self) -> pa.Table:
        """Read the whole table, as described in the base class."""
        table = self._typed()
        if self.decimal is None and self.delimiter != ",":
            texts = [levels_of(column) for column in table.columns if is_text(column.type)]
            if any(decimal_of(levels) == "," for levels in texts if len(levels)):
                self.decimal = ","
                table = self._typed()  # with another decimal mark, 1.234 is another number
        return table

    def _typed(self) -> pa.Table:
        types: dict[str, pa.DataType] = {}
        while True:  # types are found from the first rows, and widened if a later value does not fit
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
            if not parts:  # the first block predicts the size of the table
                self._require_room(batch.nbytes * max(self.path.stat().st_size / _BLOCK, 1.0))
            parts.append(batch)
        if any(pa.types.is_binary(field.type) for field in reader.schema):
            raise TableError(f"{self.path} must be text in UTF-8")
        return self._with_marks(self._whole(parts, reader.schema))

    def _with_marks(self, table: pa.Table) -> pa.Table:
        """Read texts such as "NA" again, which mean a missing value among numbers, dates and truth values only."""
        texts = [i for i, column in enumerate(table.columns) if is_text(column.type) and column.null_count]
        if texts:
            names = [self._raw[i] for i in texts]
            again = pa.Table.from_batches(self._open(dict.fromkeys(names, pa.string()), names))
            for i, column in zip(texts, again.columns, strict=True):
                table = table.set_column(i, table.column_names[i], column)
        return table

    def chunks(self, types: Mapping[str, pa.DataType | None]) -> Iterator[tuple[int, pa.Table]]:
        """Read the table in chunks, as described in the base class."""
        raw = dict(zip(self.columns, self._raw, strict=True))
        first = 0
        try:
            read_as = dict.fromkeys((raw[name] for name in types), pa.string())
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
            # One thread, since with several threads errors do not name the line.
            read_options=arrow_csv.ReadOptions(block_size=_BLOCK, use_threads=False, encoding=self._encoding),
            parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict(types),
                include_columns=columns,
                strings_can_be_null=True,
                decimal_point=self.decimal or ".",
                # A column whose type is given as text may be copied, or have levels such as "NA".
                null_values=[*(_MISSING if columns is None else ("",)), *self.missing],
            ),
        )

    def _refuse(self, error: pa.ArrowInvalid) -> NoReturn:
        """Raise a ``TableError`` for an error of Arrow."""
        text = str(error)
        if match := _CONVERSION.search(text):
            name = self.columns[int(match[1])]
            if match[4] is None:
                raise TableError(f"{self.path} must be text in UTF-8, which column {name!r} is not") from None
            where = f" in line {match[2]}" if match[2] else ""
            raise TableError(
                f"{self.path}: column {name!r} must be of type {match[3]} in every row, got {match[4]!r}{where}"
            )
        if match := _RAGGED.search(text):
            where = f"line {match[1]}" if match[1] else "every line"
            raise TableError(f"{self.path}: {where} must have {match[2]} values, as the header has, got {match[3]}")
        if "straddl" in text:
            raise TableError(f"{self.path}: no value may be longer than 8 MB; is a quotation mark not closed?")
        raise TableError(f"{self.path} must be a CSV file ({text.splitlines()[0]})")


def _beginning(path: Path) -> tuple[str, str]:
    """Return the first megabyte of the text, and its encoding."""
    try:
        with pa.input_stream(path, compression="detect") as stream:
            content = stream.read(2**20)
    except OSError as error:
        raise TableError(f"{path} must be a CSV or Parquet file ({error})") from None
    encodings = (
        ["utf-16"] if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else ["utf-8-sig", "cp1252"]
    )
    for encoding in encodings:
        try:
            text = content.decode(encoding, errors="strict" if len(content) < 2**20 else "ignore")
        except UnicodeDecodeError:
            continue
        if "\0" in text:
            raise TableError(f"{path} must be a CSV or Parquet file, got neither text nor Parquet")
        if not text.strip():
            raise TableError(f"{path} must be a CSV or Parquet file, got an empty file")
        return text, "utf8" if encoding == "utf-8-sig" else encoding
    raise TableError(f"{path} must be text in UTF-8, or a Parquet file")


def _header(path: Path, text: str, delimiter: str) -> list[str]:
    if len(delimiter) != 1:
        raise TableError(f"`delimiter` must be one character, got {delimiter!r}")
    lines = text.lstrip("\r\n").splitlines(keepends=True)
    try:
        return next(csv.reader(lines, delimiter=delimiter))
    except (csv.Error, StopIteration) as error:
        raise TableError(f"{path} must have the columns' names in its first line ({error})") from None


def _short(name: str, most: int = 30) -> str:
    return name if len(name) <= most else name[:most] + "..."


def _counted(names: list[str]) -> bool:
    """Whether the names are 0, 1, 2, ..., as in a file of an array without names."""
    return names in ([str(i + start) for i in range(len(names))] for start in (0, 1))
