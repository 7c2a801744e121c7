"""Columns in words and numbers, for people."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from bayesadam.tabular.columns import Category, Column, Number, level_counts
from bayesadam.tabular.numbers import as_numbers

_LEVELS = 3


def describe(column: Column, values: pa.ChunkedArray) -> dict[str, Any]:
    """An input in a line: "name", "kind", "missing" (share of the rows) and "summary".

    Args:
        column: What it is taken for.
        values: Of all rows.
    """
    if isinstance(column, Number):
        numbers = as_numbers(values, column.name)
        known = numbers[~np.isnan(numbers)]
        low, middle, high = np.quantile(known, [0.0, 0.5, 1.0])
        summary, missing = f"{low:.4g} to {high:.4g}, median {middle:.4g}", 1.0 - len(known) / len(numbers)
    else:
        counts = level_counts(values)
        total = max(sum(counts.values()), 1)
        shown = [f"{level} ({count / total:.0%})" for level, count in list(counts.items())[:_LEVELS]]
        more = f" and {len(counts) - _LEVELS} more" if len(counts) > _LEVELS else ""
        levels = f"{len(counts)} levels: " if isinstance(column, Category) else ""
        summary, missing = levels + ", ".join(shown) + more, values.null_count / len(values)
    return {"name": column.name, "kind": column.kind, "missing": missing, "summary": summary}
