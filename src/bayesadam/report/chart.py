"""A chart with its explanation, its description in words, its legend, and a table of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import (
    BasicTicker,
    BasicTickFormatter,
    ColumnDataSource,
    HoverTool,
    LogTicker,
    NumeralTickFormatter,
    PlainText,
    Range1d,
)
from bokeh.plotting import figure

from bayesadam.report.palette import LIGHT
from bayesadam.report.values import Array, digits, every, printable

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_SMALL = "12px"


@dataclass(frozen=True)
class Key:
    """One entry of a legend.

    Attributes:
        mark: ``"line"``, ``"dashed"``, ``"dotted"``, ``"band"``, ``"bar"``, ``"hatched"``, ``"circle"``,
            ``"triangle"``.
        colour: Name of the colour in the palette.
        text: Meaning of the mark.
    """

    mark: str
    colour: str
    text: str


@dataclass(frozen=True)
class Chart:
    """One chart of the page.

    Attributes:
        name: Name, unique on the page.
        title: Heading.
        reading: Sentence that explains how to read the chart.
        label: Description of the chart for screen readers.
        plot: The Bokeh figure.
        header: Header of the table of its numbers.
        rows: Rows of this table.
        legend: Entries of the legend, which is part of the page, so that it wraps on small screens and is read aloud.
        wide: Whether the chart has the full width of the page.
        thinned: Whether the table has only some of the rows.
    """

    name: str
    title: str
    reading: str
    label: str
    plot: figure
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    legend: Sequence[Key] = ()
    wide: bool = False
    thinned: bool = False


def blank(
    x: str,
    y: str,
    *,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    height: int = 300,
    **options: Any,
) -> figure:
    """Return an empty figure in the style of the page, without a toolbar.

    It cannot be panned or zoomed, so that a finger on it scrolls the page. The background is transparent, because a
    painted one would leave a seam at the edges when the theme changes.

    Args:
        x: Label of the x-axis.
        y: Label of the y-axis.
        x_range: Limits of the x-axis; by default from the data.
        y_range: Limits of the y-axis; by default from the data.
        height: Height in pixels.
        options: Options of Bokeh's figure.
    """
    for name, limits in (("x_range", x_range), ("y_range", y_range)):
        if limits is not None:
            options[name] = Range1d(start=float(limits[0]), end=float(limits[1]))
    plot = figure(
        height=height,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_right=16,
        min_border_top=8,
        **options,
    )
    axis: Any
    for axis, label in ((plot.xaxis[0], x), (plot.yaxis[0], y)):
        axis.axis_label = PlainText(text=printable(label))
        axis.axis_label_text_font = axis.major_label_text_font = FONT
        axis.axis_label_text_font_size = axis.major_label_text_font_size = _SMALL
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_color = axis.major_label_text_color = LIGHT["muted"]
        axis.axis_line_color = axis.major_tick_line_color = LIGHT["muted"]
        axis.minor_tick_line_color = None
        axis.major_tick_in = 0
        if isinstance(axis.ticker, BasicTicker) and not isinstance(axis.ticker, LogTicker):
            axis.ticker.desired_num_ticks = 5  # more labels would overlap on a phone
    for grid in (plot.xgrid[0], plot.ygrid[0]):
        grid.grid_line_color = LIGHT["grid"]
    return plot


def histogram(plot: figure, edges: Array, counts: Array) -> None:
    """Draw bars that count rows, and show their numbers under the pointer."""
    plot.xgrid[0].visible = False
    source = ColumnDataSource({"left": edges[:-1], "right": edges[1:], "count": counts.astype(np.float64)})
    bars = plot.quad(
        left="left",
        right="right",
        bottom=0,
        top="count",
        source=source,
        fill_color=LIGHT["blue"],
        fill_alpha=0.55,
        line_color=LIGHT["blue"],
    )
    exact = f"{{%.{digits(edges)}g}}"
    hover(plot, [bars], {"from": f"@left{exact}", "to": f"@right{exact}", "rows": "@count{%d}"})


def hover(plot: figure, renderers: Sequence[Any], entries: Mapping[str, str], mode: str = "mouse") -> None:
    """Show values under the pointer.

    Args:
        plot: The figure.
        renderers: Renderers that react to the pointer.
        entries: Bokeh's templates, such as ``"@y{%.5g}"``, by label. Templates must never contain text of the user.
        mode: ``"mouse"``, or ``"vline"`` for all points at the same horizontal position.
    """
    fields = {part.split("{")[0]: "printf" for part in entries.values() if "{%" in part}
    options: Any = {"formatters": fields, "mode": mode, "show_arrow": False}
    plot.add_tools(HoverTool(renderers=list(renderers), tooltips=list(entries.items()), **options))


def units(axis: Any, *values: Array) -> None:
    """Write large tick labels as 250k and 1.5m instead of 2.500e+5, and in full if the values are close together."""
    largest = max((float(np.abs(array).max()) for array in values if len(array)), default=0.0)
    if not 1e4 <= largest < 1e12:
        axis.formatter = BasicTickFormatter(precision="auto")
    elif digits(*values) > 5:
        axis.formatter = BasicTickFormatter(use_scientific=False)
    else:
        axis.formatter = NumeralTickFormatter(format="0.[00]a")


def span(*values: Array, margin: float = 0.04) -> tuple[float, float]:
    """Return limits of an axis that contain all values and a small margin."""
    together = np.concatenate([array for array in values if len(array)] or [np.zeros(1)])
    low, high = float(together.min()), float(together.max())
    room = margin * (high - low) or 0.5 * (abs(high) or 1.0)
    return low - room, high + room


def table(*series: Sequence[str]) -> tuple[list[tuple[str, ...]], bool]:
    """Return columns of text as rows of a table, and whether rows were omitted because there are many."""
    rows = list(zip(*series, strict=True))
    thin = every(rows)
    return thin, len(thin) < len(rows)
