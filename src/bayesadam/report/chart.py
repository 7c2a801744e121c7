"""A chart with its explanation, its legend, and a table of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import (
    BasicTickFormatter,
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    NumeralTickFormatter,
    PlainText,
    Range1d,
)
from bokeh.plotting import figure
from numpy.typing import ArrayLike

from bayesadam.report.numbers import canvas_text
from bayesadam.report.palette import LIGHT

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
Texts = Mapping[str, Sequence[str]]
"""Texts of all points of a chart by their names, which must not come from the user."""


@dataclass(frozen=True)
class Key:
    """One entry of a legend: its mark (as in the page's template), the name of its colour, and its meaning."""

    mark: str
    colour: str
    text: str


class Chart:
    """One chart of the page. Its methods draw, and add entries to the legend.

    It cannot be panned or zoomed, so that a finger on it scrolls the page. The background is transparent, because a
    painted one would leave a seam at the edges when the theme changes.

    Args:
        name: Name, unique on the page.
        title: Heading.
        reading: Sentences that explain how to read the chart.
        x: Label of the x-axis.
        y: Label of the y-axis.
        x_range: Limits of the x-axis.
        y_range: Limits of the y-axis, which may be in decreasing order.
        height: Height in pixels.
        wide: Whether the chart has the full width of the page.

    Attributes:
        plot: The Bokeh figure.
        legend: Entries of the legend, which is part of the page, so that it wraps on small screens and is read aloud.
        header: Header of the table of the chart's numbers.
        rows: Rows of this table.
        thinned: Whether the table has only some of the rows.
    """

    def __init__(
        self,
        name: str,
        title: str,
        reading: str,
        x: str,
        y: str,
        *,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        height: int = 300,
        wide: bool = False,
    ) -> None:
        self.name, self.title, self.reading, self.wide = name, title, reading, wide
        self.legend: list[Key] = []
        self.header: list[str] = []
        self.rows: list[tuple[str, ...]] = []
        self.thinned = False
        self.plot: Any = figure(
            height=height,
            sizing_mode="stretch_width",
            toolbar_location=None,
            tools="",
            x_range=Range1d(start=float(x_range[0]), end=float(x_range[1])),
            y_range=Range1d(start=float(y_range[0]), end=float(y_range[1])),
            background_fill_color=None,
            border_fill_color=None,
            outline_line_color=None,
            min_border_right=16,
            min_border_top=8,
        )
        axis: Any
        for axis, label in ((self.plot.xaxis[0], x), (self.plot.yaxis[0], y)):
            axis.axis_label = PlainText(text=canvas_text(label))
            axis.axis_label_text_font = axis.major_label_text_font = FONT
            axis.axis_label_text_font_size = axis.major_label_text_font_size = "12px"
            axis.axis_label_text_font_style = "normal"
            axis.axis_label_text_color = axis.major_label_text_color = LIGHT["muted"]
            axis.axis_line_color = axis.major_tick_line_color = LIGHT["muted"]
            axis.minor_tick_line_color = None
            axis.major_tick_in = 0
            axis.ticker.desired_num_ticks = 5  # more labels would overlap on a phone
        for grid in (self.plot.xgrid[0], self.plot.ygrid[0]):
            grid.grid_line_color = LIGHT["grid"]

    def line(
        self, x: ArrayLike, y: ArrayLike, colour: str, *, dash: str = "solid", width: float = 2.0, key: str = ""
    ) -> None:
        """Draw a line, which is "solid", "dashed" or "dotted"."""
        self.plot.line(np.asarray(x), np.asarray(y), line_color=LIGHT[colour], line_dash=dash, line_width=width)
        self._explain({"solid": "line"}.get(dash, dash), colour, key)

    def band(
        self,
        x: ArrayLike,
        low: ArrayLike,
        high: ArrayLike,
        colour: str,
        *,
        alpha: float = 0.15,
        width: float | None = None,
        key: str = "",
    ) -> None:
        """Fill the area between two lines, or, with a ``width`` in pixels, draw a vertical line at every ``x``."""
        x, low, high = (np.asarray(values) for values in (x, low, high))
        if width is None:
            self.plot.varea(x, low, high, fill_color=LIGHT[colour], fill_alpha=alpha)
        else:
            self.plot.segment(x, low, x, high, line_color=LIGHT[colour], line_width=width, line_alpha=alpha)
        self._explain("band" if alpha <= 0.25 else "bar", colour, key)

    def points(
        self,
        x: ArrayLike,
        y: ArrayLike,
        colour: str,
        texts: Texts,
        *,
        size: Any = 7,
        marker: str = "circle",
        alpha: float = 1.0,
        key: str = "",
    ) -> None:
        """Draw marks with texts under the pointer."""
        columns = {"x": np.asarray(x), "y": np.asarray(y), "size": np.broadcast_to(size, np.shape(x))}
        look = {"marker": marker, "fill_color": LIGHT[colour], "fill_alpha": alpha, "line_color": None}
        self._draw(self.plot.scatter, columns, look, texts)
        self._explain(marker, colour, key)

    def boxes(
        self,
        left: ArrayLike,
        right: ArrayLike,
        bottom: ArrayLike,
        top: ArrayLike,
        colour: str,
        texts: Texts,
        *,
        hatched: bool = False,
        alpha: Any = 0.55,
        key: str = "",
    ) -> None:
        """Draw bars, or other boxes, with texts under the pointer."""
        sides = np.broadcast_arrays(left, right, bottom, top)
        columns = dict(zip(("left", "right", "bottom", "top"), sides, strict=True))
        columns["fill_alpha"] = np.broadcast_to(alpha, columns["left"].shape)
        look = {"fill_color": LIGHT[colour], "line_color": LIGHT[colour]}
        if hatched:
            look |= {"hatch_pattern": "right_diagonal_line", "hatch_color": LIGHT[colour]}
        self._draw(self.plot.quad, columns, look, texts)
        self._explain("hatched" if hatched else "bar", colour, key)

    def table(self, columns: Texts, most: int = 40) -> None:
        """Set the table of the numbers, of which at most ``most`` rows are shown."""
        rows = list(zip(*columns.values(), strict=True))
        shown = np.linspace(0, len(rows) - 1, min(len(rows), most)).round().astype(int)
        self.header, self.rows, self.thinned = list(columns), [rows[i] for i in shown], len(shown) < len(rows)

    def ticks(self, axis: Any, places: Sequence[float], texts: Sequence[str], most: int = 18) -> None:
        """Label an axis at these places only."""
        axis.ticker = FixedTicker(ticks=list(places))
        axis.formatter = NumeralTickFormatter()
        labels = {place: PlainText(text=canvas_text(text, most)) for place, text in zip(places, texts, strict=True)}
        axis.major_label_overrides = labels

    def _draw(self, glyph: Any, columns: Mapping[str, Any], look: Mapping[str, Any], texts: Texts) -> None:
        """Draw glyphs whose properties are columns of numbers, and show texts under the pointer."""
        shown = {f"text{i}": [canvas_text(text) for text in column] for i, column in enumerate(texts.values())}
        fields = {name: name for name in columns}
        glyphs = glyph(source=ColumnDataSource({**columns, **shown}), **fields, **look)
        entries: Any = [(name, f"@text{i}") for i, name in enumerate(texts)]
        self.plot.add_tools(HoverTool(renderers=[glyphs], tooltips=entries, show_arrow=False))

    def _explain(self, mark: str, colour: str, key: str) -> None:
        if key:
            self.legend.append(Key(mark, colour, key))


def percent_ticks(*axes: Any) -> None:
    """Write the labels of axes as percentages."""
    for axis in axes:
        axis.formatter = NumeralTickFormatter(format="0.[0]%")


def short_ticks(axis: Any, *values: ArrayLike) -> None:
    """Write large labels as 250k and 1.5m, unless the values are so close together that they need all digits."""
    together = np.concatenate([np.ravel(part) for part in values])
    largest, reach = float(np.abs(together).max()), float(np.ptp(together))
    if 1e4 <= largest < 1e12 and reach > 0.02 * largest:
        axis.formatter = NumeralTickFormatter(format="0.[00]a")
    else:
        axis.formatter = BasicTickFormatter(use_scientific=not 1e-3 <= largest < 1e12)


def limits(*values: ArrayLike, margin: float = 0.06) -> tuple[float, float]:
    """Return limits of an axis that contain all values but NaN and a margin, so that no mark is cut off."""
    together = np.concatenate([np.ravel(part) for part in values])
    low, high = float(np.nanmin(together)), float(np.nanmax(together))
    room = margin * (high - low) or 0.5 * (abs(high) or 1.0)
    return low - room, high + room
