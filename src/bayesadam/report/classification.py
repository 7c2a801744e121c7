"""Charts of a classification: mistaken classes, the calibration of the probabilities, and the confidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from bokeh.core.properties import value
from scipy import stats

from bayesadam.metrics import calibration_curve
from bayesadam.report.chart import FONT, Chart, percent_ticks
from bayesadam.report.numbers import canvas_text, count, percent
from bayesadam.report.palette import LIGHT
from bayesadam.report.predicted import PredictedClasses

_CLASSES = 20
"""Maximum number of classes of the confusion matrix."""


def confusion(rows: PredictedClasses, classes: Sequence[str]) -> Chart:
    """Return a chart of the counts of actual and predicted classes, limited to the classes with the most mistakes."""
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (rows.label, rows.predicted), 1)
    mistakes = counts - np.diag(counts.diagonal())
    shown = np.sort(np.argsort(-(mistakes.sum(0) + mistakes.sum(1)), kind="stable")[:_CLASSES])
    part = counts[np.ix_(shown, shown)]
    share = part / np.maximum(counts.sum(axis=1)[shown, None], 1)
    size = len(shown)
    names = [canvas_text(classes[code], 14) for code in shown]
    chart = Chart(
        "confusion",
        "Confusion matrix",
        "Rows are actual classes, columns predicted ones, numbers are counts of held-out rows: the diagonal is right, "
        "everything else is one class taken for another; a stronger colour is a larger share of the actual class."
        + (f" Shown are the {_CLASSES} classes with the most mistakes." if len(classes) > _CLASSES else ""),
        "predicted",
        "actual",
        x_range=(-0.5, size - 0.5),
        y_range=(size - 0.5, -0.5),
        height=int(np.clip(34 * size + 90, 220, 640)),
        max_width=max(360, 62 * size + 140),
        wide=True,
    )
    actual, predicted = (grid.ravel() for grid in np.indices(part.shape))
    texts = {
        "actual": [classes[shown[i]] for i in actual],
        "predicted": [classes[shown[i]] for i in predicted],
        "rows": [count(int(number)) for number in part.ravel()],
        "of the actual class": [percent(float(one), 1) for one in share.ravel()],
    }
    alpha = 0.75 * share.ravel()
    chart.boxes(predicted - 0.5, predicted + 0.5, actual - 0.5, actual + 0.5, "cell", texts, alpha=alpha)
    cells = [text if text != "0" else "" for text in texts["rows"]]
    chart.plot.text(
        predicted,
        actual,
        cells,
        text_align="center",
        text_baseline="middle",
        text_color=LIGHT["ink"],
        text_font=value(FONT),
        text_font_size="13px" if size <= 12 else "10px",
    )
    for axis in (chart.plot.xaxis[0], chart.plot.yaxis[0]):
        chart.ticks(axis, range(size), names)
    if size * (7 * max(map(len, names)) + 8) > 300:  # side by side, the labels would overlap on a phone
        chart.plot.xaxis[0].major_label_orientation = 0.9
    chart.plot.xgrid[0].visible = chart.plot.ygrid[0].visible = False
    order = [i for i in np.argsort(-part.ravel(), kind="stable") if part.ravel()[i]]
    chart.table({name: [column[i] for i in order] for name, column in texts.items()}, most=60)
    return chart


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


def confidences(rows: PredictedClasses) -> Chart:
    """Return a histogram of the confidence, with right and wrong predictions in different colours."""
    edges = np.linspace(1.0 / rows.probs.shape[1], 1.0, 16)
    right, wrong = (np.histogram(rows.confidence[mask], edges)[0] for mask in (rows.right, ~rows.right))
    chart = Chart(
        "confidences",
        "Confidence",
        "Of two models whose probabilities are right, the one with more rows far to the right is more useful. The "
        "hatched part is wrong, and should be small where the confidence is high.",
        "confidence",
        "rows",
        x_range=(float(edges[0]), 1.0),
        y_range=(0, 1.12 * float((right + wrong).max())),
    )
    percent_ticks(chart.plot.xaxis[0])
    chart.plot.xgrid[0].visible = False
    texts = {
        "from": [percent(edge) for edge in edges[:-1]],
        "to": [percent(edge) for edge in edges[1:]],
        "right": [count(int(number)) for number in right],
        "wrong": [count(int(number)) for number in wrong],
    }
    chart.boxes(edges[:-1], edges[1:], wrong, right + wrong, "blue", texts, key="right")
    chart.boxes(edges[:-1], edges[1:], 0.0, wrong, "vermilion", texts, hatched=True, alpha=0.3, key="wrong")
    chart.table(texts)
    return chart
