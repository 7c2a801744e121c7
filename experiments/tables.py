"""Numbers with their errors, published numbers, and tables in Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

MISSING = "-"
"""Text that stands for an unknown number."""
NUMBER = re.compile(r"-|[+-]?\d[\d.]*(e[+-]?\d+)?( ± [\d.]+)?")
"""Text of a cell in a column of numbers."""


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
    def of(cls, values: Iterable[float], *, ddof: int = 1, decimals: int | None = None, sd: bool = False) -> Number:
        """Return the mean and its standard error, or the standard deviation of the values if ``sd``.

        The variance has the divisor ``n - ddof``; some papers use ``ddof=0``. A single value has no error, and no
        values have neither.
        """
        found = list(values)
        if not found:
            return cls(None)
        n = len(found)
        mean = math.fsum(found) / n
        if n == 1:
            return cls(mean, None, decimals)
        variance = math.fsum((x - mean) ** 2 for x in found) / (n - ddof)
        return cls(mean, math.sqrt(variance if sd else variance / n), decimals)

    @classmethod
    def less(cls, one: Iterable[float], other: Iterable[float], **options: Any) -> Number:
        """Return the mean difference of paired values; see :meth:`of`."""
        return cls.of([a - b for a, b in zip(one, other, strict=True)], **options)

    def __str__(self) -> str:
        if self.mean is None or math.isnan(self.mean):
            return MISSING
        if not math.isfinite(self.mean):
            return str(self.mean)
        error = self.error if self.error is not None and math.isfinite(self.error) else None
        decimals = _decimals(error) if self.decimals is None and error else self.decimals
        if decimals is None:
            return f"{self.mean:.4g}" + ("" if error is None else f" ± {error:g}")
        return _fixed(self.mean, decimals) + ("" if error is None else f" ± {_fixed(error, decimals)}")


def published(path: Path) -> dict[tuple[str, str, str], Number]:
    """Return published numbers by data set, method and metric, with as many decimals as in the file.

    Args:
        path: CSV with the columns dataset, method, metric, mean, std_or_stderr, which_error and source.
    """
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    numbers = [_read(*pair) for pair in zip(rows["mean"], rows["std_or_stderr"], strict=True)]
    return dict(zip(zip(rows["dataset"], rows["method"], rows["metric"], strict=True), numbers, strict=True))


def frame(header: Sequence[str], rows: Sequence[Sequence[object]]) -> pd.DataFrame:
    """Return a table whose cells are text, numbers, :class:`Number`, or ``None`` for an unknown number."""
    return pd.DataFrame([list(row) for row in rows], columns=list(header), dtype=object)


def grid(rows: Iterable[str], columns: Mapping[str, str], cell: Callable[[str, str], object]) -> pd.DataFrame:
    """Return a table with a row per data set and a column per key of ``columns``, whose values are the names."""
    return frame(["data", *columns.values()], [[row, *(cell(row, column) for column in columns)] for row in rows])


def markdown(table: pd.DataFrame) -> str:
    """Return a table in GitHub's Markdown, without its index; columns of numbers are right-aligned."""
    cells = [[_text(cell) for cell in table.iloc[:, i]] for i in range(table.shape[1])]
    right = [all(NUMBER.fullmatch(cell) for cell in column) for column in cells]
    header = [str(name) for name in table.columns]
    lines = [header, *(list(row) for row in zip(*cells, strict=True))]
    body = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
    body.insert(1, f"|{'|'.join(' ---: ' if each else ' --- ' for each in right)}|")
    return "\n".join(body)


def _text(cell: object) -> str:
    if cell is None:
        return MISSING
    return str(Number(float(cell))) if isinstance(cell, float | np.floating) else str(cell)


def _read(mean: str, error: str) -> Number:
    numbers = [Decimal(text.strip()) if text.strip() else None for text in (mean, error)]
    decimals = [-int(n.as_tuple().exponent) for n in numbers if n is not None and n.is_finite()]
    one, other = (None if n is None else float(n) for n in numbers)
    return Number(one, other, max(decimals, default=None))


def _decimals(error: float) -> int:
    """Return the number of decimals for an error, which is negative for an error of tens, hundreds, ..."""
    digits, exponent = f"{error:.2e}".split("e")
    leading = int(digits.replace(".", ""))
    return (1 if leading < 355 else 0) - int(exponent)


def _fixed(value: float, decimals: int) -> str:
    return f"{round(value, decimals) + 0.0:.{max(decimals, 0)}f}"  # adding 0.0 avoids "-0.0"
