"""The one error of this package: a table that cannot be used as it is."""

from __future__ import annotations

from collections.abc import Callable

Place = Callable[[int], str]
"""Says where a row of a table is, for its owner: ``place(0)`` is "line 2" of a CSV file."""


class TableError(ValueError):
    """A table that cannot be used as it is; the message is one line that names the column and the row."""


def row_place(row: int) -> str:
    """Where a row is in a table that comes from no file."""
    return f"row {row + 1}"


def quoted(names: list[str] | tuple[str, ...], most: int = 10) -> str:
    """Names in quotes, and how many more there are."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
