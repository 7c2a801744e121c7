"""Conversion of a report's values to arrays and texts: columns, bins, and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NONE = "–"  # noqa: RUF001
"""Text for a missing number."""


def vector(values: Any) -> Array:
    """Convert a list of numbers to an array, with nan for ``None``; ``None`` instead of a list gives an empty array."""
    return np.array([math.nan if v is None else v for v in ([] if values is None else values)], dtype=np.float64)


def columns(table: Mapping[str, Any], *names: str) -> tuple[Array, ...]:
    """Return the named columns, restricted to rows in which all are finite; all are empty if a column is missing."""
    arrays = [vector(table.get(name)) for name in names]
    if not all(map(len, arrays)):
        return tuple(np.zeros(0) for _ in names)
    whole = np.logical_and.reduce([np.isfinite(array) for array in arrays])
    return tuple(array[whole] for array in arrays)


def equal_counts(key: Array, bins: int = 10, least: int = 5) -> list[NDArray[np.intp]]:
    """Return indices of rows in up to ``bins`` groups of equal size by ``key``, with at least ``least`` rows each."""
    count = max(1, min(bins, len(key) // least))
    return [group for group in np.array_split(np.argsort(key, kind="stable"), count) if len(group)]


def standard_error(contributions: Array) -> float:
    """Return the standard error of the mean; it is infinite for fewer than two rows, which allow no conclusion."""
    if len(contributions) < 2:
        return math.inf
    return float(contributions.std(ddof=1)) / math.sqrt(len(contributions))


def every(rows: Sequence[Any], most: int = 40) -> list[Any]:
    """Return at most ``most`` of the rows, evenly spaced, including the first and the last."""
    if len(rows) <= most:
        return list(rows)
    return [rows[i] for i in np.linspace(0, len(rows) - 1, most).round().astype(int)]


def number(value: Any, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits and separated thousands, or any other value as text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NONE
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return str(value)
    value = float(value)
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"  # noqa: RUF001
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e9 or size < 1e-4:
        text = f"{value:.{digits - 1}e}"
    else:
        decimals = max(0, digits - 1 - math.floor(math.log10(size)))
        text = f"{value:,.{decimals}f}"
    return text.replace("-", "−")  # noqa: RUF001


def rounded(value: float, digits: int = 3) -> str:
    """Format a number like :func:`number`, but round large numbers to ``digits`` significant digits as well."""
    if not (math.isfinite(value) and value):
        return number(value, digits)
    return number(round(value, digits - 1 - math.floor(math.log10(abs(value)))), digits)


def digits(*values: Array) -> int:
    """Return the number of significant digits that distinguish values, which is large for close values."""
    together = np.concatenate([array for array in values if len(array)] or [np.zeros(1)])
    largest, reach = float(np.abs(together).max()), float(np.ptp(together))
    return 5 if reach == 0 else min(15, max(5, 4 + math.ceil(math.log10(largest / reach))))


def aligned(values: Sequence[float], most: int = 4) -> list[str]:
    """Format a column of numbers with the same decimals, at most ``most``, with four digits for the largest number."""
    largest = max((abs(value) for value in values), default=0.0)
    if not 1e-3 <= largest < 1e9:
        return [number(value, 4) for value in values]
    decimals = min(most, max(0, 3 - math.floor(math.log10(largest))))
    return [f"{value:,.{decimals}f}".replace("-", "−") for value in values]  # noqa: RUF001


def plain(value: Any) -> str:
    """Format a value of the user's data as in a file, for example a year without a thousands separator."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}" if not 1e5 <= abs(value) < 1e15 else f"{value:.0f}"
    return number(value) if value is None or isinstance(value, float) else str(value)


def whole(value: Any) -> str:
    """Format a count with separated thousands."""
    return f"{value:,d}" if isinstance(value, int) else number(value)


def percent(share: float | None, decimals: int = 0) -> str:
    """Format a share as a percentage. Only a share of exactly 1 is 100%, and only a share of 0 is 0%."""
    if share is None or not math.isfinite(share):
        return NONE
    text = f"{100.0 * share:.{decimals}f}"
    unit = 10.0**-decimals
    if float(text) >= 100.0 and share < 1.0:
        text = f"{100.0 - unit:.{decimals}f}"
    elif float(text) <= 0.0 and share > 0.0:
        return f"<{unit:g}%"
    return f"{text}%"


def printable(text: Any, most: int = 60) -> str:
    """Convert a user's text to a short line for a canvas without formulas, for which Bokeh would fetch MathJax."""
    line = "".join(c if c.isprintable() else " " for c in str(text))
    line = line if len(line) <= most else line[: most - 1] + "…"
    for mark in ("$$", r"\[", r"\("):
        line = line.replace(mark, mark[0] + "\u200b" + mark[1])
    return line
