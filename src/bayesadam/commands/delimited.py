"""The options for the format of a CSV file."""

from __future__ import annotations

DELIMITER = "Between the cells of a CSV file; default: what makes columns of its first line."
DECIMAL = "Decimal mark of a CSV file, a point or a comma; default: what its numbers have."
MISSING = "Text or number that means a missing value in any column; may be repeated."


def delimiter_of(given: str | None) -> str | None:
    """Return the delimiter that an option names; ``tab`` stands for a tab, which is hard to type."""
    return "\t" if given in ("\\t", "tab") else given
