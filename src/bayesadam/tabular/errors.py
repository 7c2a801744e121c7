"""The error class of this package, and places of rows in messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Place = Callable[[int], str]
"""A function that returns the place of a row for messages, for example "line 2" as ``place(0)`` of a CSV file."""


class TableError(ValueError):
    """A table cannot be used as it is. The message is one line that names the column and the row.

    Names of parameters are in backquotes (`keep`), so that a user interface can replace them by its own names.

    Args:
        message: The message for the user.
        remedy: Settings, by name, with which a fit would accept the table. Columns and texts are added to the existing
            ones.
    """

    def __init__(self, message: str, **remedy: Any) -> None:
        super().__init__(message)
        self.remedy = remedy


def row_place(row: int) -> str:
    """Return the place of a row in a table that is not from a file."""
    return f"row {row + 1}"


def quoted(names: list[str] | tuple[str, ...], most: int = 10) -> str:
    """Return the names in quotes, and the number of further names."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def require_type(value: Any, kind: type) -> None:
    """Raise ``ValueError`` if a value from a file has another type."""
    if not isinstance(value, kind):
        raise ValueError(f"the stored value must be of type {kind.__name__}, got {value!r}")
