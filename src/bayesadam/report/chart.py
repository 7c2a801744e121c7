"""A chart and what belongs to it: how to read it, what it shows in words, its legend, and its numbers as a table."""

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
        colour: Name in the palette.
        text: What it stands for.
    """

    mark: str
    colour: str
    text: str


@dataclass(frozen=True)
class Chart:
    """One chart of the page.

    Attributes:
        name: Unique on the page.
        title: Heading.
        reading: One sentence on how to read it.
        label: What it shows, for who cannot see it.
        plot: The drawing.
        header: Of the table of its numbers.
        rows: Of that table.
        legend: Drawn by the page, where it wraps on small screens and is read aloud.
        wide: Whether it takes the page's full width.
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
    """An empty figure in the page's style: as wide as its place, no toolbar, quiet axes.

    Nothing in it pans or zooms, so that a finger on it scrolls the page. The paper shows
    through: painted, it would leave a seam of the other theme at the edges when the theme changes.

    Args:
        x: Label of the axis.
        y: Label of the axis.
        x_range: Limits; default from the data.
        y_range: Limits; default from the data.
        height: In pixels.
        options: Of Bokeh's figure.
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
            axis.ticker.desired_num_ticks = 5  # more would run into each other on a phone
    for grid in (plot.xgrid[0], plot.ygrid[0]):
        grid.grid_line_color = LIGHT["grid"]
    return plot


def histogram(plot: figure, edges: Array, counts: Array) -> None:
    """Bars that count rows, with their numbers under the pointer."""
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
        renderers: What reacts to the pointer.
        entries: Label to Bokeh's template, such as ``"@y{%.5g}"``; the templates are the library's, never the user's.
        mode: ``"mouse"``, or ``"vline"`` for whatever is at the same horizontal place.
    """
    fields = {part.split("{")[0]: "printf" for part in entries.values() if "{%" in part}
    options: Any = {"formatters": fields, "mode": mode, "show_arrow": False}
    plot.add_tools(HoverTool(renderers=list(renderers), tooltips=list(entries.items()), **options))


def units(axis: Any, *values: Array) -> None:
    """Tick labels as 250k and 1.5m rather than 2.500e+5 where the values are large, and whole where they are close."""
    largest = max((float(np.abs(array).max()) for array in values if len(array)), default=0.0)
    if not 1e4 <= largest < 1e12:
        axis.formatter = BasicTickFormatter(precision="auto")
    elif digits(*values) > 5:
        axis.formatter = BasicTickFormatter(use_scientific=False)
    else:
        axis.formatter = NumeralTickFormatter(format="0.[00]a")


def span(*values: Array, margin: float = 0.04) -> tuple[float, float]:
    """Limits of an axis that shows all values and a little more."""
    together = np.concatenate([array for array in values if len(array)] or [np.zeros(1)])
    low, high = float(together.min()), float(together.max())
    room = margin * (high - low) or 0.5 * (abs(high) or 1.0)
    return low - room, high + room


def table(*series: Sequence[str]) -> tuple[list[tuple[str, ...]], bool]:
    """Columns of text as rows of a table, thinned where they are many, and whether they were."""
    rows = list(zip(*series, strict=True))
    thin = every(rows)
    return thin, len(thin) < len(rows)
