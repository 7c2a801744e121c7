"""A chart as SVG, which follows the page's colours, with its explanation and a table of its numbers."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter
from numpy.typing import ArrayLike

from bayesadam.tables.report.numbers import short_text
from bayesadam.tables.report.palette import LIGHT

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LIGHT["muted"],
    "axes.labelcolor": LIGHT["muted"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT["grid"],
    "text.color": LIGHT["ink"],
    "lines.linewidth": 2,
    "legend.frameon": False,
    "axes.xmargin": 0.06,
    "axes.ymargin": 0.06,
}
_SVG = "http://www.w3.org/2000/svg"
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


class Chart:
    """One chart of the page.

    Args:
        name: Name, unique on the page.
        title: Heading.
        reading: Sentences that explain how to read the chart.
        x: Label of the x-axis.
        y: Label of the y-axis.
        numbers: Columns of the table of the chart's numbers, whose names must not come from the user.
        height: Height in inches; the width is 5 inches, and both follow the width of the page.

    Attributes:
        axes: The axes of matplotlib.
        rows: Rows of the table of the numbers.
    """

    def __init__(
        self,
        name: str,
        title: str,
        reading: str,
        x: str,
        y: str,
        numbers: Mapping[str, Sequence[str]],
        height: float = 3.4,
    ) -> None:
        self.name, self.title, self.reading, self.numbers = name, title, reading, numbers
        self.rows = list(zip(*numbers.values(), strict=True))
        self._pointed: dict[str, Sequence[int]] = {}
        with rc_context(_STYLE):
            self.axes: Any = Figure(figsize=(5.0, height), layout="constrained").subplots()
        self.axes.set(xlabel=short_text(x), ylabel=short_text(y))
        for axis, most in ((self.axes.xaxis, 4), (self.axes.yaxis, 6)):
            axis.set_major_locator(MaxNLocator(most))
            axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
            axis.set_tick_params(length=0)

    def points(self, x: ArrayLike, y: ArrayLike, rows: Sequence[int], *, marker: str = "o", **look: Any) -> None:
        """Draw marks, each of which shows a row of the table under the pointer."""
        (line,) = self.axes.plot(x, y, marker=marker, markeredgewidth=0, linestyle="none", **look)
        line.set_gid(f"points-{len(self._pointed)}")
        self._pointed[line.get_gid()] = rows

    def diagonal(self, label: str, at: float = 0.0) -> None:
        """Draw a dashed line on which both axes have the same value, for example ``at``, which is visible."""
        self.axes.axline((at, at), slope=1, color=LIGHT["muted"], linestyle="--", label=label, zorder=1)

    def svg(self) -> Markup:
        """Return the chart for a page that defines the colours."""
        file, figure = io.StringIO(), self.axes.figure
        with rc_context({**_STYLE, "svg.hashsalt": self.name}), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks, since the browser's has them
            handles, labels = self.axes.get_legend_handles_labels()
            if handles:
                figure.legend(handles, labels, loc="outside upper left", ncols=2)
            canvas = FigureCanvasSVG(figure)
            # Figure.savefig would draw the chart twice, the first time for the layout only.
            figure.get_layout_engine().execute(figure)
            figure.set_layout_engine("none")
            canvas.print_svg(file, metadata=_NO_METADATA)  # type: ignore[no-untyped-call]
        root = ElementTree.fromstring(file.getvalue())
        for group in root.iter(f"{{{_SVG}}}g"):
            marks = list(group.iter(f"{{{_SVG}}}use"))
            for mark, row in zip(marks, self._pointed.get(group.attrib.pop("id", ""), ()), strict=False):
                text = "\n".join(f"{name}: {cell}" for name, cell in zip(self.numbers, self.rows[row], strict=True))
                ElementTree.SubElement(mark, f"{{{_SVG}}}title").text = short_text(text, 300)
        ElementTree.register_namespace("", _SVG)
        ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
        text = ElementTree.tostring(root, encoding="unicode")
        for name, colour in LIGHT.items():
            text = text.replace(colour, f"var(--{name})")
        return Markup(text)


def percent_axes(*axes: Any) -> None:
    """Write the labels of axes as percentages."""
    for axis in axes:
        axis.set_major_formatter(PercentFormatter(1.0))
