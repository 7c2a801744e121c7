"""The page: six panels with the mean and one standard deviation, as in the paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from experiments.experiment import Report
from experiments.results import Result
from experiments.tables import Cell, Number, Table
from experiments.toy_regression.notes import NOTES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {
    "gp": "Gaussian process",
    "badam": "Badam, linearised",
    "mc-dropout": "MC dropout",
    "bbb": "Bayes by Backprop",
    "vadam": "Vadam",
    "anchored": "anchored ensemble",
}
COLUMNS = {
    "nll": ("NLL inside", 3),
    "rmse": ("RMSE inside", 4),
    "noise_sd": ("noise sd", 3),
    "sd_inside": ("sd of f: inside", 3),
    "sd_near": ("up to 0.25 outside", 3),
    "sd_far": ("farther", 3),
    "covered_inside": ("f within 2 sd: inside", 2),
    "covered_outside": ("outside", 2),
}
BLUE, ORANGE = "#0072B2", "#D55E00"


def report(results: Mapping[str, Result]) -> Report:
    """Return the report from the results of the finished units."""
    rows: list[list[Cell]] = [
        [label, *(Number(results[key].result[name], None, digits) for name, (_, digits) in COLUMNS.items())]
        for key, label in METHODS.items()
        if key in results
    ]
    header = ["method", *(name for name, _ in COLUMNS.values())]
    title = "Inside: [0, 0.5), where the data are; outside: the rest of [-0.5, 1.2)"
    return Report([Table(title, header, rows)], {"panels": _figure(results)}, NOTES)


def _figure(results: Mapping[str, Result]) -> Figure:
    """Plot the panels in two rows, so that they are wide enough on a page."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.2), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True).flat
    for axis, (key, label) in zip(axes, METHODS.items(), strict=False):
        axis.set_title(label, fontsize=10)
        axis.set(xlim=(-0.5, 1.2), ylim=(-2.8, 2.8))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        if key not in results:
            continue
        found = results[key].result
        x, mean, sd, total = (np.asarray(found[name], float) for name in ("x", "mean", "sd", "total_sd"))
        axis.fill_between(x, mean - total, mean + total, color=BLUE, alpha=0.15, lw=0, label="with noise, 1 sd")
        axis.fill_between(x, mean - sd, mean + sd, color=BLUE, alpha=0.35, lw=0, label="of the function, 1 sd")
        axis.plot(x, mean, color=BLUE, lw=1.8, label="mean")
        f = x + 0.3 * np.sin(2 * np.pi * x) + 0.3 * np.sin(4 * np.pi * x)
        axis.plot(x, f, color=ORANGE, lw=1.2, ls="--", label="truth")
        axis.plot(*found["train"], ".", color="black", markersize=2, label="data")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return figure
