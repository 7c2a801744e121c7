"""The published box plots, read from the authors' figure files, and our boxes beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.tables import published

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATISTICS = {"whislo": "whisker_lo", "q1": "q25", "med": "median", "q3": "q75", "whishi": "whisker_hi"}
"""Names of the statistics in matplotlib's ``bxp``, with those in the file."""

NAMES = {
    "negative_elbo": "neg_ELBO_per_train_point_nats",
    "log_loss": "test_logloss_nats",
    "symmetric_kl": "symmetric_KL_to_MF-Exact",
}
"""Names of the metrics in the file."""

Box = Mapping[str, float]


def box(dataset: str, method: str, metric: str) -> Box:
    """Return the known numbers of a box plot: some of ``STATISTICS`` and ``mean``, or none if none were published."""
    numbers = _numbers()
    names = {**STATISTICS, "mean": "mean"}
    found = {ours: (dataset, method, f"{NAMES[metric]}:{theirs}") for ours, theirs in names.items()}
    return {name: numbers[key] for name, key in found.items() if key in numbers}


def toy(method: str) -> Box:
    """Return ``mu_1``, ``sd_1``, ``mu_2`` and ``sd_2`` of a posterior in Fig. 2a."""
    return {m: v for (data, by, m), v in _numbers().items() if data == "murphy_synth_seed0" and by == method}


@cache
def _numbers() -> dict[tuple[str, str, str], float]:
    rows = published(Path(__file__).with_name("paper.csv"))
    return {key: number.mean for key, number in rows.items() if number.mean is not None}


def values(result: Mapping[str, Any], metric: str) -> list[float]:
    """Return the values of a metric for all runs of a unit."""
    return [run[metric] for run in result["runs"]]


def quantiles(numbers: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile."""
    low, median, high = np.quantile(list(numbers), [0.25, 0.5, 0.75])
    return float(low), float(median), float(high)


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


def draw_ours(axis: Axes, place: float, values: Sequence[float], colour: str, width: float = 0.3) -> None:
    """Draw a filled box of our runs, with the runs as dots."""
    line: dict[str, Any] = {"color": colour}
    styles: dict[str, Any] = {"whiskerprops": line, "capprops": line, "medianprops": {**line, "linewidth": 2}}
    styles["boxprops"] = {"facecolor": colour, "alpha": 0.35, "edgecolor": colour}
    options: dict[str, Any] = {"positions": [place], "widths": width, "showfliers": False, "manage_ticks": False}
    axis.boxplot([list(values)], patch_artist=True, **options, **styles)
    count = max(len(values) - 1, 1)
    spread = [place + width * (0.6 * i / count - 0.3) for i in range(len(values))]
    axis.plot(spread, list(values), ".", color=colour, markersize=3, alpha=0.7, zorder=3)


def draw_theirs(axis: Axes, place: float, box: Box, width: float = 0.3) -> None:
    """Draw a hollow box of published statistics. If there is no median, the mean is a dashed line."""
    if not box:
        return
    complete: dict[str, Any] = {"whislo": box["q1"], "whishi": box["q3"], "med": float("nan"), "fliers": [], **box}
    line = {"color": GREY, "linewidth": 1}
    styles: dict[str, Any] = {name: line for name in ("boxprops", "whiskerprops", "capprops")}
    styles |= {"medianprops": {**line, "linewidth": 2}, "meanprops": {**line, "linestyle": "--"}}
    options: dict[str, Any] = {"positions": [place], "widths": width, "showfliers": False, "manage_ticks": False}
    shown: dict[str, Any] = {"showcaps": "whislo" in box, "showmeans": "med" not in box, "meanline": True}
    axis.bxp([complete], **options, **shown, **styles)
