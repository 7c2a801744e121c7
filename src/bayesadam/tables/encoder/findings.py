"""Notes on values of a table that are unlike the training rows, or that cannot be read.

What notes and errors advise is written as an argument in Python, for example ``keep=['Patient No']``. Only where the
command line or the report shows it, ``bayesadam.tables.runs.settings.with_options`` makes an option of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bayesadam.tables.encoder.csv_numbers import is_text

_SHOWN = 3
FAR = 0.5
"""Distance from the range of the training rows, relative to its length, beyond which a value is far outside."""

Mask = NDArray[np.bool_]
Place = Callable[[int], str]
"""A function that returns the place of a row for messages, for example "line 2" as ``place(0)`` of a CSV file."""


class TableError(ValueError):
    """A table cannot be used as it is. The message is one line that names the column and the row."""


@contextmanager
def column_errors(what: str, column: pa.ChunkedArray) -> Iterator[None]:
    """Context in which a ``TableError`` says which column has a type, or values, for which pyarrow lacks a function."""
    try:
        yield
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise TableError(f"{what} must be numbers, text or dates, got {column.type} ({reason})") from None


def row_place(row: int) -> str:
    """Return the place of a row in a data frame, whose rows are counted from 0."""
    return f"row {row}"


def quoted(names: list[str] | tuple[str, ...], most: int = 10) -> str:
    """Return the names in quotes, and the number of further names."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


@dataclass
class Findings:
    """One line for each column and each kind of value that did not occur in the training rows.

    Attributes:
        place: Function that returns the place of a row.
        cells: Lines on cells that cannot be read, or are missing as none was in training.
        others: Lines on values that are unlike the training rows.
    """

    place: Place = row_place
    cells: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """All lines."""
        return self.cells + self.others

    def unreadable(self, name: str, column: pa.ChunkedArray, where: Mask, rule: str) -> None:
        """Note cells that are taken as missing, because they are not what the column holds.

        Raises:
            TableError: More than half of the cells are of this kind, or they are infinite numbers.
        """
        if 2 * where.sum() > len(column) - column.null_count or (where.any() and not is_text(column.type)):
            raise TableError(f"column {name!r} must hold {rule}, got {self._examples(column, where)}")
        self.cells += _line(
            name, where, f"cells that are not {rule} ({self._examples(column, where)}): they count as missing"
        )

    def with_missing(self, name: str, codes: NDArray[np.float64], absent: Mask, *, expected: bool) -> NDArray[Any]:
        """Append a column that marks missing values if they are expected; otherwise note them.

        Args:
            name: Name of the column of the table.
            codes: Its columns of the matrix, ``(N, K)``, in which missing values are replaced.
            absent: Mask of the missing values, ``(N,)``.
            expected: Whether training rows had missing values.
        """
        if expected:
            return np.column_stack([codes, absent])
        self.missing(name, absent)
        return codes

    def missing(self, name: str, where: Mask) -> None:
        """Note missing values."""
        self.cells += _line(
            name, where, "missing values, of which the training rows had none (they are replaced by typical values)"
        )

    def inexact(self, name: str, column: pa.ChunkedArray, where: Mask) -> None:
        """Note whole numbers whose last digits are lost."""
        words = f"whole numbers beyond 2**53 ({self._examples(column, where)}), whose last digits are lost"
        advice = f"(if they are codes: category=[{name!r}]; if they are no input: drop=[{name!r}])"
        self.cells += _line(name, where, f"{words} {advice}")

    def new_levels(self, name: str, column: pa.ChunkedArray, where: Mask) -> None:
        """Note levels that are not among the column's levels."""
        words = f"categories that are rare or absent in the training rows ({self._examples(column, where)}): "
        self.others += _line(name, where, words + "they are taken as 'other'")

    def outside(
        self,
        name: str,
        values: NDArray[np.float64],
        ends: tuple[float, float],
        text: Callable[[float], str] = "{:g}".format,
    ) -> None:
        """Note numbers or dates that are far outside of the range of the training rows, which ``text`` writes."""
        room = FAR * (ends[1] - ends[0])
        where = (values < ends[0] - room) | (values > ends[1] + room)
        if where.any():
            row = int(where.argmax())
            shown = [text(value) for value in (*ends, values[row])]
            self.others += _line(
                name,
                where,
                f"values far outside of the training rows' range of {shown[0]} to {shown[1]} ({shown[2]} in "
                f"{self.place(row)}): do not rely on the predictions there, nor on their intervals",
            )

    def _examples(self, column: pa.ChunkedArray, where: Mask) -> str:
        shown: dict[str, str] = {}
        for row in np.flatnonzero(where)[:100].tolist():
            if len(shown) < _SHOWN:
                shown.setdefault(str(column[row].as_py()), self.place(row))
        return ", ".join(f"{text!r} in {place}" for text, place in shown.items())


def _line(name: str, where: Mask, words: str) -> list[str]:
    count = int(where.sum())
    return [f"column {name!r}: {count:,} {'row has' if count == 1 else 'rows have'} {words}"] if count else []
