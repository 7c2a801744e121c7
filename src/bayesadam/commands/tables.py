"""Tables of scores for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

_HIGHER_IS_BETTER = ("accuracy", "OOD AUROC", "(")
_LOWER_IS_BETTER = ("RMSE", "NLL", "ECE", "CRPS", "Brier")


def score_table(title: str, rows: Mapping[str, Mapping[str, float | None]], *, digits: str = ".3f") -> Table:
    """Return a table of scores by method, in which the best score of each column is bold.

    Args:
        title: Title above the table.
        rows: Scores by name; ``None`` is shown as a dash.
        digits: Format of the numbers.
    """
    table = Table(title=escape(title), title_justify="left")
    table.add_column("method")
    columns = list(next(iter(rows.values())))
    best: dict[str, float] = {}
    for column in columns:
        table.add_column(column, justify="right")
        values = [value for row in rows.values() if (value := row[column]) is not None]
        if values and column.startswith(_HIGHER_IS_BETTER):
            best[column] = max(values)
        elif values and column.startswith(_LOWER_IS_BETTER):
            best[column] = min(values)
    for method, row in rows.items():
        table.add_row(escape(method), *(_cell(row[c], best.get(c, math.nan), digits) for c in columns))
    return table


def _cell(value: float | None, best: float, digits: str) -> str:
    if value is None:
        return "-"
    return f"[bold]{value:{digits}}[/]" if value == best else f"{value:{digits}}"
