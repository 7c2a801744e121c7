"""The page: shares with their errors, the settings that were tried, and a figure of paths and ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.experiment import Report
from experiments.landscape.notes import NOTES
from experiments.results import Result
from experiments.tables import Cell, Number, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {
    "gradient-descent": "gradient descent",
    "adam": "Adam",
    "vadam": "Vadam, temperature 1",
    "vadagrad": "VadaGrad, temperature 0",
    "annealed": "Vadam to VadaGrad, annealed",
}
ORANGE = "#D55E00"


def report(results: Mapping[str, Result]) -> Report:
    """Return the report from the results of the finished units."""
    found = {key: results[key].result for key in METHODS if key in results}
    return Report([_shares(found), _tried(found)], {"paths": _figure(found)}, NOTES)


def _shares(found: Mapping[str, Mapping[str, Any]]) -> Table:
    rows: list[list[Cell]] = []
    base = found.get("gradient-descent")
    for key, result in found.items():
        sets = result["sets"]
        row: list[Cell] = [METHODS[key], _first(result, "line"), _first(result, "settled"), _first(result, "centre")]
        paired = None
        if base is not None and key != "gradient-descent":
            paired = _number([a["settled"] - b["settled"] for a, b in zip(sets, base["sets"], strict=True)], 3)
        row += [_mean(sets, "line"), _mean(sets, "settled"), paired, _mean(sets, "centre"), _mean(sets, "deep")]
        rows.append([*row, _mean(sets, "value", 4), _mean(sets, "curvature", 0), _mean(sets, "outside")])
    header = ["method", "first 200: on x = 0", "settled there", "within 0.2 of the origin", "all sets: on x = 0"]
    header += ["settled there", "less gradient descent", "within 0.2 of the origin", "any minimum", "mean F"]
    header += ["curvature", "outside of [-1, 1]²"]
    return Table("Shares of starts, with standard errors: binomial for the first 200, else over ten sets", header, rows)


def _first(result: Mapping[str, Any], name: str) -> Number:
    share, count = result["sets"][0][name], len(result["ends"])
    return Number(share, math.sqrt(share * (1 - share) / count), 3)


def _mean(sets: list[Mapping[str, float]], name: str, digits: int = 3) -> Number:
    return _number([one[name] for one in sets if one[name] is not None], digits)


def _number(values: list[float], digits: int) -> Number:
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return Number(float(np.mean(values)) if values else None, error, digits)


def _tried(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Tabulate the mean values from the tuning starts, by learning rate."""
    rates = sorted({one["lr"] for result in found.values() for one in result["tried"]})
    rows: list[list[Cell]] = []
    for key, result in found.items():
        for scale in sorted({one["num_data"] for one in result["tried"]}):
            row: list[Cell] = [METHODS[key], f"{scale:g}"]
            for rate in rates:
                row.append(_cell(result["tried"], rate, scale))
            rows.append(row)
    header = ["method", "factor on F", *(f"rate {rate:g}" for rate in rates)]
    return Table("From the tuning starts: mean F, and in brackets the share on x = 0", header, rows)


def _cell(tried: list[Mapping[str, float]], rate: float, scale: float) -> str | None:
    for one in tried:
        if (one["lr"], one["num_data"]) == (rate, scale):
            return f"{one['value']:.3f} ({one['line']:.2f})"
    return None


def _figure(found: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Plot paths from four starts in the upper row, and the ends of the first 200 in the lower row."""
    import torch
    from matplotlib.figure import Figure

    from experiments.landscape.protocol import objective

    shown = [key for key in ("gradient-descent", "adam", "annealed") if key in found]
    figure = Figure(figsize=(3.2 * max(len(shown), 1), 6.6), layout="constrained")
    axes = figure.subplots(2, max(len(shown), 1), squeeze=False, sharex=True, sharey=True)
    side = torch.linspace(-1.1, 1.1, 221, dtype=torch.float64)
    values = objective(torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)).numpy()
    for column, key in enumerate(shown):
        for axis in axes[:, column]:
            axis.contourf(side.numpy(), side.numpy(), values, levels=8, cmap="Blues_r")
            axis.axvline(0.0, color="black", lw=0.6, ls=":")
            axis.set_aspect("equal")
        for path in np.asarray(found[key]["paths"], float):
            axes[0, column].plot(*path.T, color=ORANGE, lw=0.9)
            axes[0, column].plot(*path[0], "o", color=ORANGE, ms=5, mfc="white")
            axes[0, column].plot(*path[-1], "o", color=ORANGE, ms=5)
        ends = np.asarray(found[key]["ends"], float)
        axes[1, column].plot(*ends.T, "o", color=ORANGE, ms=2.5, alpha=0.7)
        axes[0, column].set_title(METHODS[key], fontsize=10)
        axes[1, column].set_xlabel("x")
    axes[0, 0].set_ylabel("paths from four starts\ny")
    axes[1, 0].set_ylabel(f"ends of {len(ends) if shown else 0} starts\ny")
    axes[0, 0].set_xlim(-1.1, 1.1)
    axes[0, 0].set_ylim(-1.1, 1.1)
    return figure
