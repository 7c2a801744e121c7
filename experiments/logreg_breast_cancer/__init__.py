"""Khan et al. 2018, Fig. 2c: logistic regression, the size of Vadam's minibatch on breast cancer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.framework import Report, Unit
from experiments.logistic_regression.methods import VON, compare, settings, units_of
from experiments.logistic_regression.pages import COLOURS, GREY, box, draw_ours, draw_theirs, quantiles, values
from experiments.plots import panels
from experiments.tables import Number, frame

TITLE = "Logistic regression, minibatch sizes on breast cancer"
SOURCE = "Khan et al. 2018, Fig. 2c"

TRAIN, SEEDS, SIZES = 341, 20, (1, 8, 16, 32, 64)
VADAM_EPOCHS, VOGN_EPOCHS = 10_000, 2000
STEPS = {
    "vadam-matlab": "Vadam, MATLAB step",
    "vadam": "Vadam",
    "vadam-longer": "Vadam, step times the root of N",
}
"""Names of the Vadams. The last is the paper's with ``sqrt(N)`` times the step size, and shows whether the paper's has
converged: the MATLAB step divides by ``sqrt(s / N)``, and is about as much longer.
"""
DATASET, METRIC = "breast_cancer_scale", "symmetric_kl"

run = compare


def units() -> list[Unit]:
    """Return one unit per method and minibatch size, each with all seeds at once; VON has as many splits instead."""
    methods: dict[str, Mapping[str, Any]] = {
        "von": {**VON, "splits": list(range(SEEDS))},
        "vogn-1": settings("vogn", 1, VOGN_EPOCHS * TRAIN, 0.0005, 0.0005),
    }
    for size in SIZES:
        iterations = VADAM_EPOCHS * TRAIN // size
        for method in ("vadam", "vadam-matlab"):
            methods[f"{method}-{size}"] = settings(method, size, iterations, 0.01, 0.01, decay=0.55)
        if size > 1:
            lr = round(0.01 * math.sqrt(TRAIN), 6)
            methods[f"vadam-longer-{size}"] = settings("vadam", size, iterations, lr, 0.01, decay=0.55)
    methods["vadam-matlab-64-halves"] = {**methods["vadam-matlab-64"], "splits": [1, 2, 3]}
    return units_of("libsvm/breast-cancer", 1.0, [0] * SEEDS, methods)


def report(results: Mapping[str, Any]) -> Report:
    """Return box plots beside those of the paper."""
    middle, rows = [], []
    for size in SIZES:
        keys = [f"{method}-{size}" for method in STEPS]
        ours = [Number(quantiles(values(results[k], METRIC))[1]) if k in results else None for k in keys]
        middle.append([size, Number(box(DATASET, f"Vadam M={size}", METRIC).get("med")), *ours])
    names = {"mf-exact": "MF-Exact", "von": "VON", "vogn-1": "VOGN-1"}
    names |= {f"{method}-{size}": f"{name}, M = {size}" for size in SIZES for method, name in STEPS.items()}
    names["vadam-matlab-64-halves"] = "Vadam, MATLAB step, M = 64, three other halves"
    for key, name in names.items():
        if key not in results:
            continue
        found = values(results[key], METRIC)
        low, median, high = quantiles(found)
        losses = [Number(quantiles(values(results[key], one))[1], None, 4) for one in ("negative_elbo", "log_loss")]
        rows.append([name, sum(found) / len(found), low, median, high, max(found), *losses])
    paper = box(DATASET, "VOGN-1", METRIC)
    rows.append(["paper: VOGN-1", paper["mean"], paper["q1"], None, paper["q3"], None, None, None])
    header = ["method", "mean", "first quartile", "median", "third quartile", "largest", "negative ELBO", "log-loss"]
    tables = {
        "Vadam: symmetric KL to MF-Exact in nats, median over the seeds": frame(
            ["M", "paper", "ours, MATLAB step", "ours, the paper's step", "the same times the root of N"], middle
        ),
        "All runs: symmetric KL to MF-Exact; median negative ELBO and log-loss per point; nats": frame(header, rows),
    }
    return Report(tables, {"symmetric-kl": _figure(results)})


def _figure(results: Mapping[str, Any]) -> Figure:
    """Plot our boxes, which are filled, and those of the paper, which are hollow."""
    figure, axes = panels(1, 1, 9, 4.8, grid="y")
    axis = axes[0, 0]
    places = {0.0: ("von", "VON"), 1.0: ("vogn-1", "VOGN")}
    draw_theirs(axis, 1.28, box(DATASET, "VOGN-1", METRIC), 0.24)
    for place, size in enumerate(SIZES, 2):
        places |= {
            place - 0.28: (f"vadam-matlab-{size}", "Vadam, MATLAB step"),
            place + 0.28: (f"vadam-{size}", "Vadam"),
        }
        draw_theirs(axis, place, box(DATASET, f"Vadam M={size}", METRIC), 0.24)
    for at, (key, name) in places.items():
        draw_ours(axis, at, values(results[key], METRIC), COLOURS[name], 0.24)
    axis.set(yscale="log", ylabel="symmetric KL to MF-Exact (nats)", xlim=(-0.6, len(SIZES) + 1.6))
    axis.set_xticks(range(2 + len(SIZES)), ["VON", "VOGN-1", *(f"Vadam\nM = {size}" for size in SIZES)])
    axis.axvline(1.64, color="0.8", linewidth=1)
    labels = {"VON": "VON, exact Hessian", "VOGN": "VOGN-1", "Vadam, MATLAB step": "Vadam, MATLAB step"}
    labels |= {"Vadam": "Vadam, the paper's step"}
    legend: list[Any] = [Patch(facecolor=COLOURS[name], alpha=0.5, label=label) for name, label in labels.items()]
    legend.append(Line2D([], [], color=GREY, marker="s", markersize=10, mfc="none", linestyle="", label="paper"))
    figure.legend(handles=legend, loc="outside upper center", ncols=5, frameon=False, fontsize=9)
    return figure
