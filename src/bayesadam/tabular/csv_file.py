"""CSV files. The types of the columns are found while reading, and messages name the line and the column."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
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
_LOOKED_AT = 20
"""Number of rows that decide on the delimiter."""
_SEPARATOR = re.compile(r'"?sep=(.)"?(\r\n|\r|\n)')
"""The line with which Excel tells the delimiter, above the names."""
_CONVERSION = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to ([^:]+): (?:invalid value '(.*)')?", re.DOTALL
)
_RAGGED = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_WIDER = {"null": pa.int64(), "int64": pa.float64(), "date32[day]": pa.timestamp("s")}


class CsvFile(TableFile):
    """Text in UTF-8, Windows-1252 or UTF-16, compressed or not, with the columns' names in its first line.

    Args:
        path: Path of the file.
        delimiter: Delimiter between the cells. With ``None`` it is that of a first line "sep=;", or the one that gives
            several columns, as many in the first rows as in the line of the names.
        decimal: Decimal mark, ``"."`` or ``","``. With ``None`` it is found by :meth:`read`.
        missing: Texts that mean a missing value in any column.
        usual: The delimiter if the first rows do not tell. With ``None`` it is a tab if the name ends in ".tsv" or
            ".tab", else a comma.

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
        expected = delimiter or usual or ("\t" if tabs else ",")
        if len(expected) != 1:
            raise TableError(f"`delimiter` must be one character, got {expected!r}")
        text, self._encoding = _beginning(path)
        said = _SEPARATOR.match(text)
        if said:
            text = text[said.end() :]
        found = said[1] if said else _delimiter(text, expected)
        self.delimiter = delimiter or found
        names, lines = _header(path, text, self.delimiter)
        self.first_line = lines + bool(said) + 1
        notes = [f"columns are separated by {found!r}"] if self.delimiter != expected else []
        if len(names) == 1 and self.delimiter != found and found in names[0]:
            raise TableError(
                f"{path} must have columns separated by {self.delimiter!r}, got one column, {_short(names[0])!r}",
                delimiter=found,
            )
        if decimal not in (None, ".", ",") or decimal == self.delimiter:
            raise TableError(f"`decimal` must be '.' or ',' and not the `delimiter`, got {decimal!r}")
        if self._encoding != "utf8":
            notes.append(f"the text is read as {self._encoding}, as it is not UTF-8")
        if all(re.fullmatch(NUMBER, name.strip()) for name in names) and not _counted(names):
            raise TableError(f"{path} must have the columns' names in its first line, got the numbers {names[:3]}")
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
                types[self.columns[int(match[1])]] = _WIDER.get(match[3], pa.string())

    def _read(self, types: Mapping[str, pa.DataType]) -> pa.Table:
        parts: list[pa.RecordBatch] = []
        reader = self._open(types, None)
        for batch in reader:
            if not parts:  # the first block predicts the size of the table
                self._require_room(batch.nbytes * max(self.path.stat().st_size / _BLOCK, 1.0))
            parts.append(batch)
        if any(pa.types.is_binary(field.type) for field in reader.schema):
            raise TableError(f"{self.path} must be text in UTF-8")
        table = pa.Table.from_batches(parts, reader.schema)
        if not table.num_rows:
            raise self._no_rows()
        self._check_end(table.columns[-1][-1].as_py())
        return self._cleaned(self._with_marks(table))

    def _with_marks(self, table: pa.Table) -> pa.Table:
        """Read texts such as "NA" again, which mean a missing value among numbers, dates and truth values only."""
        texts = [i for i, column in enumerate(table.columns) if is_text(column.type) and column.null_count]
        if texts:
            names = [self.columns[i] for i in texts]
            again = pa.Table.from_batches(self._open(dict.fromkeys(names, pa.string()), names))
            for i, column in zip(texts, again.columns, strict=True):
                table = table.set_column(i, self.columns[i], column)
        return table

    def chunks(self, types: Mapping[str, pa.DataType | None]) -> Iterator[tuple[int, pa.Table]]:
        """Read the table in chunks, as described in the base class."""
        first, last, end = 0, self.columns[-1], None
        read_as = {last: pa.binary(), **dict.fromkeys(types, pa.string())}
        try:
            for batch in self._open(read_as, list(read_as)):
                table = pa.Table.from_batches([batch]).select(list(types))
                end = batch.column(last)[-1].as_py() if len(batch) else end
                for start in range(0, len(batch), CHUNK_ROWS):
                    part = self._cleaned(table.slice(start, CHUNK_ROWS))
                    yield first, part
                    first += len(part)
            self._check_end(end)
        except OSError as error:
            raise unreadable(self.path, error) from None
        except pa.ArrowInvalid as error:
            self._refuse(error)

    def _open(self, types: Mapping[str, pa.DataType], columns: list[str] | None) -> arrow_csv.CSVStreamingReader:
        return arrow_csv.open_csv(
            pa.input_stream(self.path, compression="detect"),
            # One thread, since with several threads errors do not name the line.
            read_options=arrow_csv.ReadOptions(
                block_size=_BLOCK,
                use_threads=False,
                encoding=self._encoding,
                column_names=self.columns,
                skip_rows=self.first_line - 1,
            ),
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
        with suppress(OSError):
            self._check_quotes()
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
            raise TableError(f"{self.path}: no value may be longer than 8 MB")
        if "Could not skip" in text:
            raise self._no_rows()
        raise TableError(f"{self.path} must be a CSV file ({text.splitlines()[0]})")

    def _check_end(self, last: object) -> None:
        """Check the quotation marks if the last cell of the table has several lines, as it may have those of rows."""
        if isinstance(last, str | bytes) and last.splitlines() != [last]:
            self._check_quotes()

    def _check_quotes(self) -> None:
        """Raise ``TableError`` if a quotation mark is not closed at the end of the file."""
        encoding = "utf-8-sig" if self._encoding == "utf8" else self._encoding
        opened = 0  # number of the line in which the present cell begins, if it is in quotation marks
        with pa.input_stream(self.path, compression="detect") as stream:
            for number, line in enumerate(io.TextIOWrapper(stream, encoding, errors="replace"), 1):
                mark = line.find('"')
                while mark >= 0:
                    if opened and line[mark + 1 : mark + 2] == '"':
                        mark += 1
                    elif opened:
                        opened = 0
                    elif mark == 0 or line[mark - 1] == self.delimiter:
                        opened = number
                    mark = line.find('"', mark + 1)
        if opened:
            raise TableError(
                f"{self.path}: every quotation mark must be closed, got one in line {opened} that is open to the end "
                "of the file"
            )


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


def _header(path: Path, text: str, delimiter: str) -> tuple[list[str], int]:
    """Return the names of the columns, and the number of lines up to them."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        return next(row for row in rows if row), rows.line_num
    except (csv.Error, StopIteration) as error:
        raise TableError(f"{path} must have the columns' names in its first line ({error})") from None


def _delimiter(text: str, expected: str) -> str:
    """Return the delimiter that gives most columns, and as many in the first rows as in the line of the names.

    If there is none, it is the expected one, or if this gives a single name, the one that gives most names.
    """
    widths = {mark: _widths(text, mark) for mark in dict.fromkeys((expected, *_DELIMITERS))}
    even = [mark for mark, found in widths.items() if found[0] > 1 and len(set(found)) == 1]
    if not even and widths[expected][0] > 1:
        return expected
    return max(even or widths, key=lambda mark: widths[mark][0])


def _widths(text: str, delimiter: str) -> list[int]:
    widths: list[int] = []
    with suppress(csv.Error):
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        widths.extend(islice((len(row) for row in rows if row), _LOOKED_AT))
    return widths or [0]


def _short(name: str, most: int = 30) -> str:
    return name if len(name) <= most else name[:most] + "..."


def _counted(names: list[str]) -> bool:
    """Whether the names are 0, 1, 2, ..., as in a file of an array without names."""
    return names in ([str(i + start) for i in range(len(names))] for start in (0, 1))
