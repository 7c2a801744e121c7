"""The style of the figures."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure


def panels(
    rows: int, columns: int, width: float, height: float, *, grid: str = "both", **options: Any
) -> tuple[Figure, Any]:
    """Return a figure of ``width`` by ``height`` inches, and an array ``(rows, columns)`` of axes without a frame.

    Args:
        rows: Number of rows.
        columns: Number of columns.
        width: Width in inches.
        height: Height in inches.
        grid: Axis whose grid is drawn, ``"x"``, ``"y"`` or ``"both"``, or ``""`` for none.
        **options: Options of :meth:`matplotlib.figure.Figure.subplots`.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        if grid:
            axis.grid(axis=grid, alpha=0.3)
    return figure, axes
