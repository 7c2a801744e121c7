"""The errors of this package, and where a row stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Place = Callable[[int], str]
"""Says where a row of a table is, for its owner: ``place(0)`` is "line 2" of a CSV file."""


class TableError(ValueError):
    """A table that cannot be used as it is; the message is one line that names the column and the row.

    Parameters of the caller are in backquotes (`keep`), so that a user interface can put in what it calls them.

    Args:
        message: For the user.
        remedy: Settings of a fit that would accept the table, by name; columns and texts are added to those given.
    """

    def __init__(self, message: str, **remedy: Any) -> None:
        super().__init__(message)
        self.remedy = remedy


def row_place(row: int) -> str:
    """Where a row is in a table that comes from no file."""
    return f"row {row + 1}"


def quoted(names: list[str] | tuple[str, ...], most: int = 10) -> str:
    """Names in quotes, and how many more there are."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def require_type(value: Any, kind: type) -> None:
    """Raise ``ValueError`` for what a damaged file has in place of a text or a truth value."""
    if not isinstance(value, kind):
        raise ValueError(f"what was written must be of type {kind.__name__}, got {value!r}")
