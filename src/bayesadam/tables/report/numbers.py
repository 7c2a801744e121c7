"""Numbers and shares as short texts for people."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NONE = "–"  # noqa: RUF001
"""Text for a missing number."""


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits and separated thousands."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return _fixed(value, decimals) if -12 <= decimals <= 8 else f"{value:.{digits - 1}e}".replace("-", "−")  # noqa: RUF001


def column(values: Iterable[float], digits: int = 4) -> list[str]:
    """Format numbers with the same decimals, so that the largest difference between them has ``digits`` digits."""
    array = np.array(list(values), dtype=np.float64)
    finite = array[np.isfinite(array)]
    return same_decimals(array, digits, float(np.ptp(finite)) if len(finite) else 0.0)


def same_decimals(values: Iterable[float], digits: int = 4, largest: float = 0.0) -> list[str]:
    """Format numbers with the same decimals, so that ``largest``, by default of the numbers, has ``digits`` digits."""
    array = np.array(list(values), dtype=np.float64)
    largest = largest or float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
    decimals = min(8, digits - 1 - math.floor(math.log10(largest))) if largest else 0
    return [_fixed(value, decimals) if math.isfinite(value) else NONE for value in array.tolist()]


def _fixed(value: float, decimals: int) -> str:
    """Format a number with a number of decimals, which may be negative, and separated thousands."""
    text = f"{round(value, decimals):,.{max(0, decimals)}f}"
    return text.replace("-", "−")  # noqa: RUF001


def percent(share: float, decimals: int = 0) -> str:
    """Format a share as a percentage. Only a share of exactly 1 is 100%, and only a share of 0 is 0%."""
    if not math.isfinite(share):
        return NONE
    text, unit = f"{100.0 * share:.{decimals}f}", 10.0**-decimals
    if float(text) >= 100.0 and share < 1.0:
        text = f"{100.0 - unit:.{decimals}f}"
    elif float(text) <= 0.0 and share > 0.0:
        return f"<{unit:g}%"
    return f"{text}%"


def short_text(text: Any, most: int = 60) -> str:
    """Convert a user's text to a short line that a chart can show."""
    line = "".join(c if c.isprintable() or c == "\n" else " " for c in str(text))
    return line if len(line) <= most else line[: most - 1] + "…"
