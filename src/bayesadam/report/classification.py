"""Charts of a classification: the calibration of its probabilities, and its confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from bokeh.models import ColumnDataSource
from numpy.typing import NDArray
from scipy import stats

from bayesadam.metrics import calibration_curve
from bayesadam.report.chart import Chart, Key, blank, hover
from bayesadam.report.palette import LIGHT
from bayesadam.report.values import Array, percent, vector

_BINS = 10


@dataclass(frozen=True)
class Answers:
    """Labels and predictions of the held-out rows, without rows with missing values.

    Attributes:
        label: Indices of the actual classes, ``(N,)``.
        predicted: Indices of the predicted classes, ``(N,)``.
        confidence: Probability of the predicted class, ``(N,)``.
        rows: Indices of these rows in the lists of the report, ``(N,)``.
        probs: Probabilities of all classes, ``(N, C)``.
    """

    label: NDArray[np.intp]
    predicted: NDArray[np.intp]
    confidence: Array
    rows: NDArray[np.intp]
    probs: Array

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.probs.shape[1])

    @property
    def right(self) -> NDArray[np.bool_]:
        """Mask of the rows whose predicted class is the actual one."""
        return np.equal(self.label, self.predicted)


def answers(held: Mapping[str, Any]) -> Answers | None:
    """Return labels, predicted classes and their probabilities; ``None`` if there are none."""
    label = vector(held.get("label"))
    if not len(label) or not held.get("probs"):
        return None
    probs = np.stack([vector(row) for row in held["probs"]])
    rows = np.flatnonzero(np.isfinite(label) & np.isfinite(probs).all(axis=1))
    if not len(rows):
        return None
    probs = probs[rows]
    return Answers(label[rows].astype(np.intp), probs.argmax(axis=1), probs.max(axis=1), rows, probs)


def reliability(held: Mapping[str, Any]) -> Chart | None:
    """Return a chart of accuracy against confidence in bins of equal width, with the range that chance allows."""
    given = answers(held)
    if given is None:
        return None
    curve = calibration_curve(torch.from_numpy(given.probs), torch.from_numpy(given.label), bins=_BINS)
    confidence, correct, share = (values[curve[2] > 0].numpy() for values in curve)
    count = (share * len(given.label)).round().astype(int)
    low, high = (ends / count for ends in stats.binom.interval(0.95, count, confidence))
    start = max(0.0, min(float(confidence.min()), 1.0 / given.classes) - 0.05)
    plot = blank("confidence", "share that is right", x_range=(start, 1.03), y_range=(-0.03, 1.05))
    plot.line([start, 1], [start, 1], line_color=LIGHT["muted"], line_dash="dashed", line_width=1.5)
    source = ColumnDataSource(
        {
            "confidence": confidence,
            "correct": correct,
            "low": low,
            "high": high,
            "count": count.astype(float),
            "size": 7.0 + 17.0 * np.sqrt(count / count.max()),
        }
    )
    plot.segment(
        "confidence", "low", "confidence", "high", source=source, line_color=LIGHT["ink"], line_alpha=0.25, line_width=9
    )
    plot.line("confidence", "correct", source=source, line_color=LIGHT["blue"], line_width=1.5)
    marks = plot.scatter(
        "confidence",
        "correct",
        size="size",
        source=source,
        fill_color=LIGHT["blue"],
        fill_alpha=0.6,
        line_color=LIGHT["blue"],
    )
    hover(plot, [marks], {"confidence": "@confidence{%.3f}", "right": "@correct{%.3f}", "rows": "@count{%d}"})
    sure, true = percent(given.confidence.mean(), 1), percent(given.right.mean(), 1)
    return Chart(
        "reliability",
        "Reliability",
        "On the dashed line, 80% of the rows that are predicted with 80% confidence are right. Below it the model is "
        "overconfident, above it underconfident. Larger marks have more rows, and the grey bars show the range that "
        "chance allows.",
        f"Accuracy against confidence of {len(given.label)} held-out rows in {len(count)} bins; the mean "
        f"confidence is {sure}, and {true} are right.",
        plot,
        ("confidence", "right", "rows", "by chance"),
        [
            (percent(c, 1), percent(r, 1), str(n), f"{percent(a, 1)} to {percent(b, 1)}")
            for c, r, n, a, b in zip(confidence, correct, count, low, high, strict=True)
        ],
        (
            Key("circle", "blue", "held-out rows"),
            Key("dashed", "muted", "as sure as right"),
            Key("band", "ink", "expected by chance, 95%"),
        ),
    )


def sharpness(held: Mapping[str, Any]) -> Chart | None:
    """Return a histogram of the confidence, with right and wrong predictions in different colours."""
    given = answers(held)
    if given is None:
        return None
    edges = np.linspace(1.0 / given.classes, 1.0, 16)
    right, _ = np.histogram(given.confidence[given.right], edges)
    wrong, _ = np.histogram(given.confidence[~given.right], edges)
    top = 1.12 * float((right + wrong).max())
    plot = blank("confidence", "rows", x_range=(edges[0], 1.0), y_range=(0, top))
    plot.xgrid[0].visible = False
    source = ColumnDataSource(
        {
            "left": edges[:-1],
            "right_edge": edges[1:],
            "right": right.astype(float),
            "wrong": wrong.astype(float),
            "total": (right + wrong).astype(float),
        }
    )
    shared: dict[str, Any] = {"left": "left", "right": "right_edge", "source": source}
    bars = [
        plot.quad(
            **shared, bottom="wrong", top="total", fill_color=LIGHT["blue"], fill_alpha=0.55, line_color=LIGHT["blue"]
        ),
        plot.quad(
            **shared,
            bottom=0,
            top="wrong",
            fill_color=LIGHT["vermilion"],
            fill_alpha=0.3,
            line_color=LIGHT["vermilion"],
            hatch_pattern="right_diagonal_line",
            hatch_color=LIGHT["vermilion"],
            hatch_scale=6,
        ),
    ]
    hover(plot, bars, {"from": "@left{%.2f}", "to": "@right_edge{%.2f}", "right": "@right{%d}", "wrong": "@wrong{%d}"})
    sure = given.confidence >= 0.9
    return Chart(
        "sharpness",
        "Sharpness",
        "Of two calibrated models, the one with more rows far to the right is more useful. The hatched part is wrong, "
        "and should be small where the confidence is high.",
        f"Histogram of the confidence of {len(given.label)} held-out rows; {percent(sure.mean())} are predicted with "
        f"at least 90%, and of these {percent(given.right[sure].mean() if sure.any() else None)} are right.",
        plot,
        ("from", "to", "right", "wrong"),
        [
            (percent(a), percent(b), str(r), str(w))
            for a, b, r, w in zip(edges[:-1], edges[1:], right, wrong, strict=True)
        ],
        (Key("bar", "blue", "right"), Key("hatched", "vermilion", "wrong")),
    )
