"""The options that say how a CSV file is written."""

from __future__ import annotations

DELIMITER = "Between the cells of a CSV file; default: a comma."
DECIMAL = "Decimal mark of a CSV file: a point (default) or a comma."


def delimiter_of(given: str | None) -> str | None:
    """The character that is meant; a tab is hard to type."""
    return "\t" if given in ("\\t", "tab") else given
