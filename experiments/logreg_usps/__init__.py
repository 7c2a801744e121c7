"""Khan et al. 2018, Fig. 2b: logistic regression, USPS 3 against 5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.framework import Report, Unit
from experiments.logistic_regression import methods
from experiments.logistic_regression.pages import COLOURS, GREY, box, draw_ours, draw_theirs, quantiles, values
from experiments.plots import panels
from experiments.tables import Number, frame

TITLE = "Logistic regression, USPS 3 against 5"
SOURCE = "Khan et al. 2018, Fig. 2b"

TRAIN, SPLITS = 770, 20
VADAM_EPOCHS, VOGN_EPOCHS = 10_000, 200
METHODS = {
    "mf-exact": ("MF-Exact", "MF-Exact", "MF-Exact"),
    "von": ("VON", "VON", ""),
    "vogn-1": ("VOGN-1", "VOGN", "VOGN-1"),
    "vadam-matlab": ("Vadam,\nMATLAB step", "Vadam, MATLAB step", "Vadam M=64"),
    "vadam": ("Vadam", "Vadam", ""),
}
"""Label, colour, and name in the paper, by unit."""
SHARP = "sharp-"
"""Beginning of the keys of the units with the pixels of the ESL files."""
METRICS = {
    "negative_elbo": "negative ELBO per point (nats)",
    "log_loss": "test log-loss (nats)",
    "symmetric_kl": "symmetric KL to MF-Exact (nats)",
}
BIAS = -0.5 * math.log(methods.BIAS) / TRAIN
"""Term that the authors' code omits from the negative ELBO per point: the log-determinant of the bias's prior."""

run = methods.compare


def units() -> list[Unit]:
    """Return one unit per method, each on all splits at once, and those with pixels that are not smoothed."""
    vadam = methods.settings("vadam", 64, VADAM_EPOCHS * TRAIN // 64, 0.01, 0.01, decay=0.55)
    own = {
        "von": methods.VON,
        "vogn-1": methods.settings("vogn", 1, VOGN_EPOCHS * TRAIN, 0.0005, 0.0005),
        "vadam-matlab": {**vadam, "method": "vadam-matlab"},
        "vadam": vadam,
    }
    sharp = methods.units_of("usps/3-vs-5", 25.0, range(SPLITS), {key: own[key] for key in ("vogn-1", "vadam-matlab")})
    smooth = methods.units_of("usps/3-vs-5-smooth", 25.0, range(SPLITS), own)
    return [*smooth, *(Unit(SHARP + unit.key, unit.config) for unit in sharp)]


def report(results: Mapping[str, Any]) -> Report:
    """Return box plots beside those of the paper."""
    title = "Medians over the splits, in nats; ELBO and log-loss per point"
    tables = {title: _table(results, "")}
    if any(key.startswith(SHARP) for key in results):
        tables["The same with pixels that are not smoothed"] = _table(results, SHARP)
    return Report(tables, {"box-plots": _figure(results)})


def _table(results: Mapping[str, Any], start: str) -> pd.DataFrame:
    rows = []
    for name, (label, _, published) in METHODS.items():
        if (key := start + name) not in results:
            continue
        row: list[Any] = [label.replace("\n", " ")]
        for metric in METRICS:
            median = quantiles(_shown(results[key], metric))[1]
            digits = 4 if metric != "symmetric_kl" else 3 if median < 1 else 1
            row += [Number(median, None, digits), Number(box("usps_3v5", published, metric).get("med"), None, digits)]
        low, _, high = quantiles(_shown(results[key], "symmetric_kl"))
        rows.append([*row, f"{low:.3g} to {high:.3g}"])
    header = ["method", "negative ELBO", "paper", "log-loss", "paper", "symmetric KL", "paper", "ours, quartiles"]
    return frame(header, rows)


def _shown(result: Mapping[str, Any], metric: str) -> list[float]:
    """Return the values of a metric as defined in the paper."""
    return [value - (BIAS if metric == "negative_elbo" else 0.0) for value in values(result, metric)]


def _figure(results: Mapping[str, Any]) -> Figure:
    """Plot our boxes, which are filled, and those of the paper, which are hollow."""
    figure, axes = panels(1, len(METRICS), 11, 4.2, grid="y")
    for axis, (metric, label) in zip(axes[0], METRICS.items(), strict=True):
        shown = [key for key in METHODS if not (metric == "symmetric_kl" and key == "mf-exact")]
        for place, key in enumerate(shown):
            _, colour, published = METHODS[key]
            theirs = box("usps_3v5", published, metric)
            draw_ours(axis, place - 0.2 * bool(theirs), _shown(results[key], metric), COLOURS[colour])
            draw_theirs(axis, place + 0.2, theirs)
        axis.set_xticks(range(len(shown)), [METHODS[key][0] for key in shown], fontsize=8)
        axis.set(xlim=(-0.6, len(shown) - 0.4), ylabel=label)
        if metric == "symmetric_kl":
            axis.set_yscale("log")
    legend = [
        Patch(facecolor="0.8", edgecolor="0.3", label="ours, one dot per split"),
        Line2D([], [], color=GREY, marker="s", markersize=10, mfc="none", linestyle="", label="paper"),
    ]
    figure.legend(handles=legend, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    return figure
