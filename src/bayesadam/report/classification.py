"""A table of mistaken classes, and a chart of the calibration of the probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats

from bayesadam.metrics import calibration_curve
from bayesadam.report.chart import Chart, percent_ticks
from bayesadam.report.numbers import count, percent
from bayesadam.report.predicted import PredictedClasses

_CLASSES = 20
"""Maximum number of classes of the confusion matrix."""
CONFUSION = (
    "Rows are actual classes, columns predicted ones, numbers are counts of held-out rows: the diagonal is right, "
    "everything else is one class taken for another; a stronger colour is a larger share of the actual class."
)
"""How to read the table of :func:`confusion`."""


def confusion(rows: PredictedClasses, classes: Sequence[str]) -> dict[str, Any]:
    """Return a table of the counts of actual and predicted classes, limited to the classes with the most mistakes.

    Returns:
        "names" of the classes, "rows" with pairs of a class and its cells, which are pairs of a text and of the share
        of the rows of the class, and the number of classes that are left out, "more".
    """
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (rows.label, rows.predicted), 1)
    mistakes = counts - np.diag(counts.diagonal())
    shown = np.sort(np.argsort(-(mistakes.sum(0) + mistakes.sum(1)), kind="stable")[:_CLASSES])
    names = [classes[code] for code in shown]
    cells = [
        [(count(int(part[code])) if part[code] else "", float(part[code] / max(part.sum(), 1))) for code in shown]
        for part in counts[shown]
    ]
    return {"names": names, "rows": list(zip(names, cells, strict=True)), "more": len(classes) - len(names)}


def reliability(rows: PredictedClasses) -> Chart:
    """Return a chart of accuracy against confidence in bins of equal width, with the range that chance allows."""
    curve = calibration_curve(torch.from_numpy(rows.probs), torch.from_numpy(rows.label), bins=10)
    confidence, correct, share = (values[curve[2] > 0].numpy() for values in curve)
    counts = (share * len(rows)).round().astype(int)
    low, high = (ends / counts for ends in stats.binom.interval(0.95, counts, np.minimum(confidence, 1.0)))
    start = max(0.0, min(float(confidence.min()), 1.0 / rows.probs.shape[1]) - 0.08)
    chart = Chart(
        "reliability",
        "Reliability",
        "On the dashed line, 80% of the rows that are predicted with 80% confidence are right. Below it the model is "
        "overconfident, above it underconfident. Larger marks have more rows.",
        "confidence",
        "share that is right",
        x_range=(start, 1.06),
        y_range=(-0.06, 1.08),
    )
    percent_ticks(chart.plot.xaxis[0], chart.plot.yaxis[0])
    chart.band(confidence, low, high, "ink", width=9, alpha=0.25, key="expected by chance, 95%")
    chart.line([start, 1], [start, 1], "muted", dash="dashed", key="as sure as right")
    chart.line(confidence, correct, "blue")
    texts = {
        "confidence": [percent(one, 1) for one in confidence],
        "right": [percent(one, 1) for one in correct],
        "rows": [count(int(number)) for number in counts],
        "by chance": [f"{percent(a)} to {percent(b)}" for a, b in zip(low, high, strict=True)],
    }
    size = 7.0 + 15.0 * np.sqrt(counts / counts.max())
    key = "rows that the networks have not seen"
    chart.points(confidence, correct, "blue", texts, size=size, alpha=0.6, key=key)
    chart.table(texts)
    return chart
