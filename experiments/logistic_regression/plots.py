"""The style of the figures of these experiments: one colour per method, distinct also for the colour-blind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.logistic_regression.paper import Box

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "MF-Exact": "#000000",
    "VON": "#009E73",
    "VOGN": "#D55E00",
    "Vadam": "#0072B2",
    "Vadam, MATLAB step": "#56B4E9",
    "BBVI": "#CC79A7",
}
"""Colours of Okabe and Ito, by method."""

GREY = "0.45"
"""Colour of published results."""


def ours(axis: Axes, place: float, values: Sequence[float], colour: str, width: float = 0.3) -> None:
    """Draw a filled box of our runs, with the runs as dots."""
    axis.boxplot(
        [list(values)],
        positions=[place],
        widths=width,
        patch_artist=True,
        showfliers=False,
        manage_ticks=False,
        boxprops={"facecolor": colour, "alpha": 0.35, "edgecolor": colour},
        medianprops={"color": colour, "linewidth": 2},
        whiskerprops={"color": colour},
        capprops={"color": colour},
    )
    count = max(len(values) - 1, 1)
    spread = [place + width * (0.6 * i / count - 0.3) for i in range(len(values))]
    axis.plot(spread, list(values), ".", color=colour, markersize=3, alpha=0.7, zorder=3)


def theirs(axis: Axes, place: float, box: Box, width: float = 0.3) -> None:
    """Draw a hollow box of published statistics. If there is no median, the mean is a dashed line."""
    if not box:
        return
    complete: dict[str, Any] = {"whislo": box["q1"], "whishi": box["q3"], "med": float("nan"), "fliers": [], **box}
    line = {"color": GREY, "linewidth": 1}
    axis.bxp(
        [complete],
        positions=[place],
        widths=width,
        showfliers=False,
        showcaps="whislo" in box,
        showmeans="med" not in box,
        meanline=True,
        manage_ticks=False,
        boxprops=line,
        medianprops={**line, "linewidth": 2},
        whiskerprops=line,
        capprops=line,
        meanprops={**line, "linestyle": "--"},
    )
