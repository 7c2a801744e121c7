"""The page: accuracy against the share of pruned weights, with the published curves beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from experiments.experiment import Report
from experiments.mnist_pruning.notes import NOTES
from experiments.results import Result
from experiments.tables import Cell, Number, Table, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = {
    "bbb/posterior": ("BBB", "#CC79A7", "s-"),
    "ivon/posterior": ("IVON", "#009E73", "o-"),
    "vadam/posterior": ("Vadam", "#56B4E9", "^-"),
    "badam/badam": ("Badam", "#0072B2", "D-"),
    "badam/magnitude": ("magnitude", "#000000", "x-"),
    "badam/mc-dropout": ("MC dropout, magnitude", "#E69F00", "P-"),
}
"""Label, colour and line style, by unit and curve."""

PUBLISHED = {"Badam SNR": ("Badam, published", "#0072B2", "D:"), "magnitude": ("magnitude, published", "0.4", "x:")}
SHOWN = (0.0, 0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)


def report(results: Mapping[str, Result]) -> Report:
    """Return the report from the results of the finished units."""
    ours: dict[str, list[dict[float, float]]] = {}
    for key, result in results.items():
        for name, curve in result.result["curves"].items():
            values = dict(zip(curve["fractions"], curve["accuracy"], strict=True))
            ours.setdefault(f"{key.rpartition('-')[0]}/{name}", []).append(values)
    theirs: dict[str, dict[float, float]] = {}
    for (_, name, metric), row in published(Path(__file__).with_name("paper.csv")).items():
        if row.value.mean is not None:
            theirs.setdefault(name, {})[float(metric.partition("@removed")[2])] = row.value.mean
    return Report([_table(ours, theirs)], {"curves": _figure(ours, theirs)}, NOTES)


def _table(ours: Mapping[str, list[dict[float, float]]], theirs: Mapping[str, dict[float, float]]) -> Table:
    rows: list[list[Cell]] = []
    for key, (label, _, _) in CURVES.items():
        if key in ours:
            rows.append([label, *(Number.of((run[share] for run in ours[key]), decimals=3) for share in SHOWN)])
    for name, (label, _, _) in PUBLISHED.items():
        rows.append([label, *(Number(theirs[name].get(share), None, 3) for share in SHOWN)])
    header = ["pruned by", *(f"{share:.0%} gone" for share in SHOWN)]
    return Table("Test accuracy, mean and standard error over seeds", header, rows)


def _figure(ours: Mapping[str, list[dict[float, float]]], theirs: Mapping[str, dict[float, float]]) -> Figure:
    """Plot the share of remaining weights on a logarithmic axis, as the curves differ mainly in the last tenth."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(9, 5), layout="constrained")
    axis = figure.subplots()
    for key, (label, colour, style) in CURVES.items():
        if key in ours:
            shares = sorted(ours[key][0])
            means = [fmean(run[share] for run in ours[key]) for share in shares]
            axis.plot([1 - s for s in shares], means, style, color=colour, label=label, markersize=5, lw=1.6)
    for name, (label, colour, style) in PUBLISHED.items():
        shares = sorted(theirs[name])
        axis.plot(
            [1 - s for s in shares],
            [theirs[name][s] for s in shares],
            style,
            color=colour,
            label=label,
            mfc="white",
            markersize=5,
            lw=1.2,
        )
    axis.set_xscale("log")
    axis.set_xlim(1.1, 0.0009)
    ticks = [1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001]
    axis.set_xticks(ticks)
    axis.xaxis.set_major_formatter(
        FuncFormatter(lambda left, _: f"{100 * (1 - left):.{max(0, -math.floor(math.log10(left)) - 2)}f}%")
    )
    axis.minorticks_off()
    axis.set(xlabel="share of weights that are gone", ylabel="test accuracy", ylim=(0.0, 1.0))
    axis.axhline(0.1, color="0.7", lw=0.8, ls="--")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, loc="lower left", fontsize=9)
    return figure
