"""The page: histograms with the propagated Gaussian, and statistics of their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.experiment import Report
from experiments.fawn_histogram.notes import NOTES
from experiments.results import Result
from experiments.tables import Cell, Number, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEIGHTS = {"bernoulli": "Bernoulli weights", "gaussian": "Gaussian weights"}
BLUE, ORANGE = "#0072B2", "#D55E00"


def report(results: Mapping[str, Result]) -> Report:
    """Return the report from the results of the finished units."""
    found = {key: results[key] for key in WEIGHTS if key in results}
    tables = [_all(found), *(_shown(key, result) for key, result in found.items())]
    return Report(tables, {"histograms": _figure(found)}, NOTES)


def _all(results: Mapping[str, Result]) -> Table:
    """Tabulate the differences over all held-out points."""
    rows: list[list[Cell]] = []
    for key, result in results.items():
        points = result.result["points"]

        def middle(name: str, points: list[Mapping[str, float]] = points) -> tuple[float, float]:
            """Return the median and the largest absolute value of a statistic."""
            values = np.abs([point[name] for point in points])
            return float(np.median(values)), float(values.max())

        row: list[Cell] = [WEIGHTS[key], len(points)]
        for name in ("mean_error", "skewness", "kurtosis", "ks"):
            row.append("{:.3f}, {:.3f}".format(*middle(name)))
        row.insert(3, "{:.3f} to {:.3f}".format(*_range(points, "variance_ratio")))
        for size in (100, 1_000):
            shares = [point[f"rejected_by_{size}"] for point in points if point[f"rejected_by_{size}"] is not None]
            row.append(f"{np.mean(shares):.0%}" if shares else None)
        row.append(f"{np.mean([point['p'] < 0.05 for point in points]):.0%}")
        rows.append(row)
    header = ["network", "points", "mean error / sd", "variance ratio", "skewness", "excess kurtosis", "KS distance"]
    header += ["rejected, 100 samples", "1,000", "all"]
    return Table("All held-out points: median and largest of absolute values", header, rows)


def _range(points: list[Mapping[str, float]], name: str) -> tuple[float, float]:
    values = [point[name] for point in points]
    return min(values), max(values)


def _shown(key: str, result: Result) -> Table:
    rows: list[list[Cell]] = []
    for histogram in result.result["histograms"]:
        point = result.result["points"][histogram["point"]]
        row: list[Cell] = [histogram["point"], Number(point["mean"], None, 2), Number(point["sd"], None, 2)]
        row += [Number(point[name], None, 3) for name in ("mean_error", "variance_ratio", "skewness", "kurtosis", "ks")]
        rows.append([*row, f"{point['p']:.1e}"])
    header = ["point", "mean", "sd", "mean error / sd", "variance ratio", "skewness", "excess kurtosis", "KS", "p"]
    return Table(f"{WEIGHTS[key]}: the points of the figure", header, rows)


def _figure(results: Mapping[str, Result]) -> Figure:
    """Plot one row of panels per network."""
    from matplotlib.figure import Figure

    columns = max(len(result.result["histograms"]) for result in results.values())
    figure = Figure(figsize=(2.1 * columns, 2.4 * len(results) + 0.3), layout="constrained")
    axes = figure.subplots(len(results), columns, squeeze=False)
    for line, (key, result) in zip(axes, results.items(), strict=True):
        for axis, histogram in zip(line, result.result["histograms"], strict=True):
            _panel(axis, histogram, result.result["points"][histogram["point"]])
        line[0].set_ylabel(f"{WEIGHTS[key]}\ndensity", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("output", fontsize=9)
    axes[0, 0].legend(fontsize=6.5, frameon=False, loc="upper left")
    return figure


def _panel(axis: Any, histogram: Mapping[str, Any], point: Mapping[str, float]) -> None:
    density = np.asarray(histogram["density"], float)
    low, high = histogram["edges"]
    edges = np.linspace(low, high, len(density) + 1)
    axis.stairs(density, edges, fill=True, color=BLUE, alpha=0.45, label="sampled")
    x = np.linspace(edges[0], edges[-1], 200)
    z = (x - point["mean"]) / point["sd"]
    axis.plot(x, np.exp(-0.5 * z**2) / (point["sd"] * math.sqrt(2 * math.pi)), color=ORANGE, lw=1.4, label="propagated")
    axis.set_title(f"KS {point['ks']:.3f}", fontsize=9)
    axis.set_ylim(top=1.25 * density.max())
    axis.set_yticks([])
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right", "left"]].set_visible(False)
