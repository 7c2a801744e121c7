"""Reading of CSV and Parquet files, from a path or from standard input."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyarrow import compute, parquet
from pyarrow import csv as arrow_csv

from bayesadam.tables.encoder.csv_numbers import NUMBER, are_codes, beyond_exact, decimals_of, levels_of
from bayesadam.tables.encoder.findings import TableError, quoted
from bayesadam.tables.encoder.memory import require_memory
from bayesadam.tables.encoder.spelling import spelled

PARQUET = (".parquet", ".pq")
STDIN = "-"
"""Path that stands for standard input."""
_DELIMITERS = (";", "\t", "|", ",")
_LOOKED_AT = 20
"""Number of rows that decide on the delimiter and on the lines above the names."""
_SEPARATOR = re.compile(r'"?sep=(.)"?(\r\n|\r|\n)')
"""The line with which Excel tells the delimiter, above the names."""
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_TOTALS = ("total", "totals", "sum", "grand total", "summe", "gesamt", "insgesamt", "totale", "suma", "somme")


@dataclass(frozen=True)
class TableFile:
    """A table that was read from a file.

    Attributes:
        name: Name of the file.
        table: The rows. Cells of CSV files are text, or numbers and truth values in columns that hold nothing else.
        first_line: Number of the first row in the file, as the user counts.
        unit: What is counted: "line" in a text file, else "row".
        decimal: Decimal mark of a text file, if it is given or found.
        notes: Notes for the user on how the file was read.
    """

    name: str
    table: pa.Table
    first_line: int = 1
    unit: str = "row"
    decimal: str | None = None
    notes: list[str] = field(default_factory=list)

    def place(self, row: int) -> str:
        """Return the place of a row, counted from 0, in the file; blank lines and breaks within cells do not count."""
        return f"{self.unit} {row + self.first_line}"


def is_parquet(path: Path | str) -> bool:
    """Whether the name of a file ends like that of a Parquet file."""
    return Path(path).suffix.lower() in PARQUET


def read_table(
    path: str | Path, *, delimiter: str | None = None, decimal: str | None = None, typed: bool = True
) -> TableFile:
    """Read a CSV file, in any common encoding, compressed by gzip or not, or a Parquet file.

    Args:
        path: Path of the file, or "-" for standard input.
        delimiter: Delimiter between the cells of a CSV file. With ``None`` it is that of a first line "sep=;", or the
            one that gives several columns, as many in the first rows as in the line of the names.
        decimal: Decimal mark of a CSV file, "." or ",". With ``None`` it is found.
        typed: Whether columns of a CSV file with plain numbers or truth values get these types, and a last row with
            sums is left out. Otherwise all cells are text and no row is left out, as for new rows, whose types are
            known from the training rows.

    Raises:
        TableError: The file cannot be read, is neither CSV nor Parquet, is damaged, or has no rows.
        NotEnoughMemory: The table is too large.
    """
    content = _content(path)
    name = "standard input" if str(path) == STDIN else Path(path).name
    if content.startswith(b"PAR1"):
        file = _read_parquet(name, content)
    elif is_parquet(path):
        raise TableError(f"{name} must be a Parquet file, as its name says, got something else")
    else:
        file = _read_csv(name, content, delimiter, decimal, typed)
    if not file.table.num_rows:
        raise TableError(f"{name} must have rows below its header, got none")
    return file


def _content(path: str | Path) -> bytes:
    """Return the bytes of the file, uncompressed."""
    name = "standard input" if str(path) == STDIN else str(path)
    short = Path(name).name
    try:
        if str(path) == STDIN:
            content = sys.stdin.buffer.read()
        else:
            _require_for_table(os.stat(path).st_size, short)
            content = Path(path).read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        _require_for_table(len(content), short)
    except IsADirectoryError:
        raise TableError(f"{name} must be a CSV or Parquet file, got a folder") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TableError(f"{name} must be a complete file ({error})") from None
    except OSError as error:
        raise TableError(f"{name} must be a file that can be read ({error.strerror or error})") from None
    if not content.strip():
        raise TableError(f"{name} must be a CSV or Parquet file, got an empty file")
    return content


def _require_for_table(size: int, name: str) -> None:
    """Check the memory for a table: the rows, the matrix, and the copies in training need as much again."""
    require_memory(4.0 * size, f"reading {name}", "use a file with fewer rows or columns")


def _read_parquet(name: str, content: bytes) -> TableFile:
    try:
        table = parquet.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"{name} must be a complete Parquet file ({str(error).splitlines()[0]})") from None
    return TableFile(name, table.rename_columns(_names(name, table.column_names)))


def _read_csv(name: str, content: bytes, delimiter: str | None, decimal: str | None, typed: bool) -> TableFile:
    text, encoding = _decoded(name, content)
    text = spelled(text)
    notes = [] if encoding == "utf-8" else [f"the text is read as {encoding}, as it is not UTF-8"]
    above, separator = 0, None
    if said := _SEPARATOR.match(text):
        text, above, separator = text[said.end() :], 1, said[1]
    usual = delimiter or ("\t" if Path(name.removesuffix(".gz")).suffix in (".tsv", ".tab") else ",")
    if len(usual) != 1:
        raise TableError(f"the delimiter must be one character, got {usual!r}")
    delimiter = delimiter or separator or _delimiter(text, usual)
    if decimal not in (None, ".", ",") or decimal == delimiter:
        raise TableError(f"the decimal mark must be '.' or ',' and not the delimiter, got {decimal!r}")
    notes += [f"columns are separated by {delimiter!r}"] * (delimiter != usual)
    first, title = _first_rows(text, delimiter)
    if not first:
        raise TableError(f"{name} must have the columns' names in its first line, got a cell that is too long")
    cells, start = first[0]
    notes += [f"the names of the columns are in line {start + above}, below {title!r}"] if title else []
    counted = cells in ([str(number + begin) for number in range(len(cells))] for begin in (0, 1))
    if all(re.fullmatch(NUMBER, cell.strip()) for cell in cells) and not counted:
        raise TableError(f"{name} must have the columns' names in its first line, got the numbers {cells[:3]}")
    names = _names(name, cells)
    lines = io.StringIO(text, newline="")
    for _ in range(start):
        lines.readline()
    table = _rows(name, lines.read(), names, delimiter, start + above)
    _check_quotes(name, table, text, delimiter, above)
    table, total = _without_total(table) if typed else (table, "")
    notes += [f"the last row is left out, as it is a total ({total!r})"] if total else []
    if decimal is None and delimiter != ",":
        decimal = "," if "," in decimals_of(table).values() else None
    if typed:
        table = pa.table([_typed(column, decimal) for column in table.columns], names=names)
    return TableFile(name, table, start + above + 1, "line", decimal, notes)


def _decoded(name: str, content: bytes) -> tuple[str, str]:
    """Return the text and the name of its encoding."""
    if b"\0" not in content or content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        with suppress(UnicodeDecodeError):
            return content.decode("utf-8-sig"), "utf-8"
        with suppress(UnicodeDecodeError):
            if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
                return content.decode("utf-16"), "utf-16"
        from charset_normalizer import from_bytes

        with suppress(UnicodeDecodeError):  # by far the most frequent, and guessed wrongly from short texts
            return content.decode("cp1252"), "cp1252"
        best = from_bytes(content[: 2**20]).best()
        if best is not None:
            return content.decode(best.encoding, errors="replace"), best.encoding
    raise TableError(f"{name} must be a CSV or Parquet file, got neither text nor Parquet")


def _first_rows(text: str, delimiter: str) -> tuple[list[tuple[list[str], int]], str]:
    """Return the cells of the first rows, each with the number of its last line, and the title above the names."""
    rows = csv.reader(io.StringIO(text[: 2**20], newline=""), delimiter=delimiter)
    first: list[tuple[list[str], int]] = []
    with suppress(csv.Error):  # a cell of more than 100,000 letters
        first.extend(islice(((row, rows.line_num) for row in rows if row), _LOOKED_AT))
    # Above row numbers and one column, ",y" has the names.
    wide = [place for place, (row, _) in enumerate(first) if sum(map(bool, row)) > 1 or (len(row) == 2 and row[1])]
    start = wide[0] if wide else 0
    width = Counter(len(row) for row, _ in first).most_common(1)[0][0] if first else 0
    usual = next((place for place, (row, _) in enumerate(first) if len(row) == width), 0)
    # A title may have the delimiter in it: names are as many as the cells of most rows, and no numbers as those are.
    if usual > start and not _has_numbers(first[usual]) and any(map(_has_numbers, first[usual + 1 :])):
        start = usual
    if start == 0 or len(first) == start + 1:
        return first, ""
    return first[start:], delimiter.join(filter(None, first[0][0])).strip()


def _has_numbers(row: tuple[list[str], int]) -> bool:
    return any(re.fullmatch(NUMBER, cell.strip()) for cell in row[0])


def _delimiter(text: str, usual: str) -> str:
    """Return the delimiter that gives most columns, and as many in the first rows as in the line of the names.

    A delimiter by which this line is a later one is not the right one: in "x;y" above "1,5;2,5" commas are decimal
    marks, and "x;y" is no title. If there is no such delimiter, it is the usual one, or if this gives a single column,
    the one that gives most.
    """
    rows = {mark: _first_rows(text, mark)[0] or [([], 0)] for mark in dict.fromkeys((usual, *_DELIMITERS))}
    widths = {mark: [len(row) for row, _ in first] for mark, first in rows.items()}
    even = [mark for mark, counts in widths.items() if counts[0] > 1 and len(set(counts)) == 1]
    if not even:
        return usual if widths[usual][0] > 1 else max(widths, key=lambda mark: widths[mark][0])
    return max(even, key=lambda mark: (-rows[mark][0][1], widths[mark][0]))


def _names(file: str, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() or f"column {number + 1}" for number, cell in enumerate(cells)]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise TableError(f"{file}: every column must have a name of its own, got {quoted(twice)} more than once")
    if not names:
        raise TableError(f"{file} must have columns, got none")
    return names


def _rows(name: str, text: str, names: list[str], delimiter: str, above: int) -> pa.Table:
    """Return all cells as text; empty cells are missing."""
    if not text.strip():
        raise TableError(f"{name} must have rows below its header, got none")
    content = text.encode()
    try:
        return arrow_csv.read_csv(
            pa.BufferReader(content),
            # One thread, since with several threads errors do not name the line.
            read_options=arrow_csv.ReadOptions(
                column_names=names, use_threads=False, block_size=max(min(len(content) + 1, 2**30), 2**10)
            ),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
            ),
        )
    except pa.ArrowInvalid as error:
        message = str(error).splitlines()[0]
        if match := _RAGGED.search(message):
            line, expected, got = (int(number) for number in match.groups())
            raise TableError(
                f"{name}: line {line + above} must have {expected} values, as the header has, got {got}"
            ) from None
        raise TableError(f"{name} must be a CSV file ({message})") from None


def _check_quotes(name: str, table: pa.Table, text: str, delimiter: str, above: int) -> None:
    """Raise ``TableError`` if a quotation mark is not closed, so that the rest of the file is in one cell."""
    last = table.columns[-1][-1].as_py() if table.num_rows else ""
    if not last or "\n" not in last.rstrip("\r\n") or text.rstrip("\r\n").endswith('"'):
        return
    line = text[: text.rfind(delimiter + '"')].count("\n") + above + 1
    raise TableError(f"{name}: every quotation mark must be closed, got one in line {line} that is open to the end")


def _without_total(table: pa.Table) -> tuple[pa.Table, str]:
    """Return the table without a last row that holds sums, and the word that says so."""
    first = next((cell for column in table.columns if (cell := column[-1].as_py())), "") if table.num_rows else ""
    if table.num_rows > 1 and first.strip(" :").lower() in _TOTALS:
        before = table.slice(0, table.num_rows - 1)
        labels = next(column for column in table.columns if column[-1].as_py() == first)
        if not compute.any(compute.equal(labels.slice(0, table.num_rows - 1), first)).as_py():
            return before, first
    return table, ""


def _typed(column: pa.ChunkedArray, decimal: str | None) -> pa.ChunkedArray:
    """Return the column as truth values or numbers if it holds nothing else, and no leading zeros."""
    levels, text = levels_of(column), compute.utf8_lower(compute.utf8_trim_whitespace(column))
    if not len(levels) or are_codes(levels):
        return column
    kinds = [("(?i:true|false)", pa.bool_()), (r"[+-]?\d+", pa.int64()), (NUMBER, pa.float64())]
    for pattern, kind in kinds[: 2 if decimal == "," else 3]:  # 1.234 is another number with a decimal comma
        if compute.all(compute.match_substring_regex(levels, f"^({pattern})$")).as_py():
            with suppress(pa.ArrowInvalid):
                typed = text.cast(kind)
                codes = kind == pa.float64() and beyond_exact(column, typed.to_numpy()).any()  # of more than 18 digits
                return column if codes else typed
    return column
