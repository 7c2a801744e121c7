"""Notes on values of a table that did not occur in the training rows, counted over all its chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bayesadam.tabular.errors import Place

_SHOWN = 3


@dataclass
class Findings:
    """Counts by column of values that did not occur in the training rows.

    Attributes:
        absent: Numbers of missing values in columns without missing values in training.
        levels: New or rare levels: the number of rows, and the first levels with their places.
        outside: Numbers and dates far outside the range of the training rows: the number of rows, and a text with the
            range and the first value with its place.
    """

    absent: dict[str, int] = field(default_factory=dict)
    levels: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    outside: dict[str, tuple[int, str]] = field(default_factory=dict)

    def missing(self, name: str, where: NDArray[np.bool_]) -> None:
        """Count missing values."""
        if where.any():
            self.absent[name] = self.absent.get(name, 0) + int(where.sum())

    def new_levels(self, name: str, column: pa.ChunkedArray, where: NDArray[np.bool_], place: Place) -> None:
        """Count rows whose level is not one of the column's levels."""
        if not where.any():
            return
        count, shown = self.levels.get(name, (0, {}))
        for row in np.flatnonzero(where)[:100].tolist():
            level: Any = column[row].as_py()
            if len(shown) < _SHOWN:
                shown.setdefault(str(level), place(row))
        self.levels[name] = count + int(where.sum()), shown

    def far_outside(
        self, name: str, values: NDArray[np.float64], where: NDArray[np.bool_], known: tuple[float, float], place: Place
    ) -> None:
        """Count numbers that are far outside the range of the training rows."""
        if where.any():
            row = int(where.argmax())
            self._outside(name, where, f"of {known[0]:g} to {known[1]:g} ({values[row]:g} in {place(row)})")

    def far_in_time(
        self,
        name: str,
        times: NDArray[np.datetime64],
        where: NDArray[np.bool_],
        known: tuple[float, float],
        place: Place,
    ) -> None:
        """Count dates that are far outside the range ``known`` of the training rows, in days since 1970."""
        if where.any():
            row = int(where.argmax())
            least, largest = (np.datetime64(math.floor(days), "D") for days in known)
            self._outside(
                name, where, f"of {least} to {largest} ({times[row].astype('datetime64[D]')} in {place(row)})"
            )

    def _outside(self, name: str, where: NDArray[np.bool_], words: str) -> None:
        count, first = self.outside.get(name, (0, words))
        self.outside[name] = count + int(where.sum()), first

    def notes(self) -> list[str]:
        """Return one line per column."""
        lines = []
        for name, count in self.absent.items():
            lines.append(
                f"column {name!r}: {_rows(count)} missing values, of which the training rows had none"
                " (they are replaced by typical values)"
            )
        for name, (count, shown) in self.levels.items():
            examples = ", ".join(f"{level!r} in {place}" for level, place in shown.items())
            lines.append(
                f"column {name!r}: {_rows(count)} categories that are rare or absent in the training rows "
                f"({examples}): they are taken as 'other'"
            )
        for name, (count, words) in self.outside.items():
            lines.append(
                f"column {name!r}: {_rows(count)} values far outside of the training rows' range {words}: "
                "do not rely on the predictions there, nor on their intervals"
            )
        return lines


def _rows(count: int) -> str:
    return f"{count:,} {'row has' if count == 1 else 'rows have'}"
