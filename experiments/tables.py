"""Tables of our numbers and published numbers, with their standard errors."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import rich.table

MISSING = "-"
"""Text that stands for an unknown number."""


@dataclass(frozen=True)
class Number:
    """A number with its error.

    ``str`` returns a text such as ``"3.93 ± 0.26"``. If ``decimals`` is ``None``, the number of decimals follows from
    the error by the rule of the Particle Data Group: the error has two significant digits if its first three digits are
    100 to 354, and otherwise one. Without an error, or with an error of 0, the number has four significant digits.
    """

    mean: float | None
    error: float | None = None
    decimals: int | None = None

    @classmethod
    def of(cls, values: Iterable[float], *, ddof: int = 1, decimals: int | None = None) -> Number:
        """Return the mean and its standard error, ``sqrt(sum (x - mean)^2 / (n - ddof) / n)``; some papers use
        ``ddof=0``.

        Raises:
            ValueError: There are no values, or a value is missing or not finite.
        """
        found = list(values)
        if not found or not all(isinstance(value, int | float) and math.isfinite(value) for value in found):
            raise ValueError(f"values must be one or more finite numbers, got {found!r}")
        n = len(found)
        mean = math.fsum(found) / n
        if n == 1:
            return cls(mean, None, decimals)
        return cls(mean, math.sqrt(math.fsum((x - mean) ** 2 for x in found) / (n - ddof) / n), decimals)

    def __str__(self) -> str:
        if self.mean is None or math.isnan(self.mean):
            return MISSING
        error = self.error if self.error is not None and math.isfinite(self.error) else None
        if not math.isfinite(self.mean):
            return str(self.mean)
        decimals = _decimals(error) if self.decimals is None and error else self.decimals
        if decimals is None:
            return f"{self.mean:.4g}" + ("" if error is None else f" ± {error:g}")
        return _fixed(self.mean, decimals) + ("" if error is None else f" ± {_fixed(error, decimals)}")


Cell: TypeAlias = "str | int | float | Number | None"


@dataclass(frozen=True)
class Table:
    """A table. Cells are text, numbers, or ``None`` for an unknown number; columns without text are right-aligned."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"rows must have {len(self.header)} cells, got {row!r}")

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown, below its title in bold."""
        lines = [self.header, [" ---: " if right else " --- " for right in self._right()], *self._text()]
        cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
        body = [f"| {' | '.join(line)} |" for line in cells]
        body[1] = f"|{'|'.join(cells[1])}|"
        return "\n".join([f"**{self.title}**", "", *body])

    def rich(self) -> rich.table.Table:
        """Return the table for the terminal."""
        from rich.markup import escape
        from rich.table import Table as RichTable

        table = RichTable(title=escape(self.title), title_justify="left")
        for name, right in zip(self.header, self._right(), strict=True):
            table.add_column(escape(name), justify="right" if right else "left")
        for row in self._text():
            table.add_row(*map(escape, row))
        return table

    def _text(self) -> list[list[str]]:
        return [[cell if isinstance(cell, str) else _shown(cell) for cell in row] for row in self.rows]

    def _right(self) -> list[bool]:
        return [not any(isinstance(row[i], str) for row in self.rows) for i in range(len(self.header))]


@dataclass(frozen=True)
class Published:
    """A number from a paper; ``which_error`` is the kind of its error, and ``source`` the place of both."""

    value: Number
    which_error: str
    source: str


def published(path: Path) -> dict[tuple[str, str, str], Published]:
    """Return published numbers by data set, method and metric, with as many decimals as in the file.

    Args:
        path: CSV with the columns experiment, dataset, method, metric, mean, std_or_stderr, which_error, source.

    Raises:
        ValueError: A column is missing, a cell is not a number, or a row occurs twice.
    """
    numbers: dict[tuple[str, str, str], Published] = {}
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        columns = {"dataset", "method", "metric", "mean", "std_or_stderr", "which_error", "source"}
        if missing := sorted(columns - set(rows.fieldnames or ())):
            raise ValueError(f"{path.name} must have the columns {', '.join(sorted(columns))}, got no {missing[0]!r}")
        for row in rows:
            key = row["dataset"], row["method"], row["metric"]
            if key in numbers:
                raise ValueError(f"{path.name} must have every number once, got {key} again in line {rows.line_num}")
            try:
                value = _read(row["mean"], row["std_or_stderr"])
            except ArithmeticError:
                found = row["mean"], row["std_or_stderr"]
                raise ValueError(f"{path.name} must have numbers, got {found} in line {rows.line_num}") from None
            numbers[key] = Published(value, row["which_error"], row["source"])
    return numbers


def _read(mean: str, error: str) -> Number:
    numbers = [Decimal(text.strip()) if text.strip() else None for text in (mean, error)]
    decimals = [-int(n.as_tuple().exponent) for n in numbers if n is not None and n.is_finite()]
    one, other = (None if n is None else float(n) for n in numbers)
    return Number(one, other, max(decimals, default=None))


def _shown(cell: int | float | Number | None) -> str:
    return str(cell) if isinstance(cell, int | Number) else str(Number(cell))


def _decimals(error: float) -> int:
    """Return the number of decimals for an error, which is negative for an error of tens, hundreds, ..."""
    digits, exponent = f"{error:.2e}".split("e")
    leading = int(digits.replace(".", ""))
    return (1 if leading < 355 else 0) - int(exponent)


def _fixed(value: float, decimals: int) -> str:
    return f"{round(value, decimals) + 0.0:.{max(decimals, 0)}f}"  # adding 0.0 avoids "-0.0"
