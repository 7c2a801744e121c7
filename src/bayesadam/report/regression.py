"""Charts of a regression: predictions with intervals, and the calibration of the intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource
from scipy import stats

from bayesadam.report.chart import Chart, Key, blank, histogram, hover, span, table, units
from bayesadam.report.palette import LIGHT
from bayesadam.report.values import Array, columns, digits, number, percent, vector

LEVEL = 0.95
"""Nominal coverage of ``lower`` and ``upper``."""
_PIT_BINS = {0: 10, 1000: 20}


def predictions(held: Mapping[str, Any], target: str) -> Chart | None:
    """Return a chart of predicted against actual values, with intervals; those that miss are marked differently."""
    columns_ = {name: held.get(name) for name in ("y", "mean", "lower", "upper")}
    columns_["row"] = held.get("row") or range(1, len(vector(held.get("y"))) + 1)
    y, mean, lower, upper, row = columns(columns_, "y", "mean", "lower", "upper", "row")
    if not len(y):
        return None
    inside = (lower <= y) & (y <= upper)
    limits = span(y, mean)
    reach = span(y, mean, np.quantile(lower, [0.02, 1.0]), np.quantile(upper, [0.0, 0.98]))
    plot = blank(f"actual {target}", f"predicted {target}", height=440, x_range=limits, y_range=reach)
    units(plot.xaxis[0], y)
    units(plot.yaxis[0], y)
    plot.line(reach, reach, line_color=LIGHT["muted"], line_dash="dashed", line_width=1.5)
    crowd = float(np.clip(250.0 / len(y), 0.12, 1.0))
    marks = []
    # Misses are drawn last, on top of the other rows.
    for where, marker, colour, size in ((inside, "circle", "blue", 5), (~inside, "triangle", "vermilion", 8)):
        arrays = {"y": y, "mean": mean, "lower": lower, "upper": upper, "row": row}
        source = ColumnDataSource({name: array[where] for name, array in arrays.items()})
        plot.segment(
            "y", "lower", "y", "upper", source=source, line_color=LIGHT[colour], line_alpha=0.5 * max(crowd, 0.3)
        )
        marks.append(
            plot.scatter(
                "y",
                "mean",
                source=source,
                marker=marker,
                size=size,
                line_color=None,
                fill_color=LIGHT[colour],
                fill_alpha=0.9 if marker == "triangle" else max(crowd, 0.4),
            )
        )
    name = "row of the file" if held.get("row") else "held-out row"
    exact = f"{{%.{digits(y)}g}}"
    shown = {"actual": "y", "predicted": "mean", "from": "lower", "to": "upper"}
    hover(plot, marks, {name: "@row{%d}"} | {word: f"@{column}{exact}" for word, column in shown.items()})
    order = np.argsort(y)
    rows, thinned = table(
        [str(int(i)) for i in row[order]],
        *([number(v, digits(y) - 1) for v in array[order]] for array in (y, mean, lower, upper)),
        ["yes" if i else "no" for i in inside[order]],
    )
    return Chart(
        "predictions",
        "Predicted against actual",
        f"Each mark is a held-out row with its {LEVEL:.0%} interval; on the dashed line the prediction is right, and "
        "an interval that crosses the line contains the actual value.",
        f"Scatter of {len(y)} held-out rows, predicted against actual {target}; the intervals of {inside.sum()} of "
        "them contain the actual value.",
        plot,
        (name, "actual", "predicted", "from", "to", "inside"),
        rows,
        (
            Key("circle", "blue", f"inside its interval ({percent(inside.mean())})"),
            Key("triangle", "vermilion", f"outside ({percent(1.0 - inside.mean())})"),
            Key("dashed", "muted", "predicted = actual"),
        ),
        wide=True,
        thinned=thinned,
    )


def pit(held: Mapping[str, Any]) -> Chart | None:
    """Return a histogram of the probability integral transform with the band expected of a calibrated model."""
    (values,) = columns(held, "pit")
    if not len(values):
        return None
    bins = max(count for rows, count in _PIT_BINS.items() if len(values) >= rows)
    counts, edges = np.histogram(np.clip(values, 0.0, 1.0), bins, (0.0, 1.0))
    low, high = map(float, stats.binom.interval(0.95, len(values), 1.0 / bins))
    top = 1.12 * max(float(counts.max()), high)
    plot = blank("predicted probability of a lower value", "rows", x_range=(0, 1), y_range=(0, top))
    histogram(plot, edges, counts)
    plot.quad(left=0, right=1, bottom=low, top=high, fill_color=LIGHT["ink"], fill_alpha=0.12, line_color=None)
    for bound in (low, high):
        plot.line([0, 1], [bound, bound], line_color=LIGHT["ink"], line_dash="dotted")
    outside = int(((counts < low) | (counts > high)).sum())
    return Chart(
        "pit",
        "Calibration",
        "For a calibrated model the bars are equally high. A U shape means that intervals are too narrow, a hump that "
        "they are too wide, and a slope that predictions are biased; by chance alone 95 of 100 bars end in the "
        "shaded band.",
        f"Histogram of {len(values)} probability integral transforms in {bins} bins; {outside} of the bins are outside "
        f"the band from {low:g} to {high:g} rows that is expected by chance.",
        plot,
        ("from", "to", "rows", "expected"),
        [
            (f"{a:.2f}", f"{b:.2f}", str(c), f"{low:g} to {high:g}")
            for a, b, c in zip(edges[:-1], edges[1:], counts, strict=True)
        ],
        (Key("bar", "blue", "held-out rows"), Key("band", "ink", "expected, 95% of bars")),
    )


def coverage(held: Mapping[str, Any]) -> Chart | None:
    """Return a chart of the coverage of central intervals of every level, from the probability integral transform."""
    (values,) = columns(held, "pit")
    if not len(values):
        return None
    levels = np.concatenate([np.arange(0.05, 0.951, 0.05), [0.98, 0.99]])
    reached = (2.0 * np.abs(values - 0.5) <= levels[:, None]).mean(axis=1)
    low, high = (ends / len(values) for ends in stats.binom.interval(0.95, len(values), levels))
    plot = blank("nominal coverage", "rows inside", x_range=(0, 1), y_range=(0, 1.02))
    for axis in (plot.xaxis[0], plot.yaxis[0]):
        axis.formatter.update(use_scientific=False)
    plot.varea(levels, low, high, fill_color=LIGHT["ink"], fill_alpha=0.12)
    plot.line([0, 1], [0, 1], line_color=LIGHT["muted"], line_dash="dashed", line_width=1.5)
    source = ColumnDataSource({"level": levels, "reached": reached, "low": low, "high": high})
    plot.line("level", "reached", source=source, line_color=LIGHT["blue"], line_width=2)
    marks = plot.scatter("level", "reached", source=source, size=6, fill_color=LIGHT["blue"], line_color=None)
    entries = {"nominal": "@level{%.2f}", "reached": "@reached{%.3f}", "by chance from": "@low{%.3f}"}
    hover(plot, [marks], entries | {"to": "@high{%.3f}"})
    at = int(np.abs(levels - LEVEL).argmin())
    return Chart(
        "coverage",
        "Interval coverage",
        "On the dashed line, intervals contain as many actual values as they promise. Below it they are too narrow, "
        "above it too wide; the band is the range that chance allows.",
        f"Line of reached against nominal coverage for {len(values)} held-out rows; the {LEVEL:.0%} intervals contain "
        f"{percent(reached[at], 1)}.",
        plot,
        ("nominal", "reached", "by chance"),
        [
            (percent(a), percent(b, 1), f"{percent(c, 1)} to {percent(d, 1)}")
            for a, b, c, d in zip(levels, reached, low, high, strict=True)
        ],
        (
            Key("line", "blue", "held-out rows"),
            Key("dashed", "muted", "as promised"),
            Key("band", "ink", "expected by chance, 95%"),
        ),
    )


def sharpness(held: Mapping[str, Any], target: str) -> Chart | None:
    """Return a histogram of the widths of the intervals, with the width of an interval that ignores the inputs."""
    y, lower, upper = columns(held, "y", "lower", "upper")
    if len(y) < 2:
        return None
    width: Array = upper - lower
    tail = (1.0 - LEVEL) / 2.0
    ignorant = float(np.diff(np.quantile(y, [tail, 1.0 - tail]))[0])
    median = float(np.median(width))
    # A few very wide intervals would compress all others into one bar.
    limit = float(np.quantile(width, 0.99)) if len(width) >= 100 else float(width.max())
    counts, edges = np.histogram(np.minimum(width, limit), min(30, max(5, len(width) // 8)), (0.0, limit or 1.0))
    top = 1.15 * float(counts.max())
    plot = blank(f"width of the {LEVEL:.0%} interval ({target})", "rows", y_range=(0, top))
    units(plot.xaxis[0], edges)
    histogram(plot, edges, counts)
    plot.line([median, median], [0, top], line_color=LIGHT["ink"], line_width=2)
    plot.line([ignorant, ignorant], [0, top], line_color=LIGHT["vermilion"], line_width=2, line_dash="dashed")
    return Chart(
        "sharpness",
        "Sharpness",
        "Of two calibrated models, the one with the narrower intervals is more useful; the dashed line is the width of "
        "an interval that ignores the inputs.",
        f"Histogram of the widths of {len(width)} intervals; their median is {number(median)}, without inputs it would "
        f"be {number(ignorant)}.",
        plot,
        ("from", "to", "rows"),
        [(number(a, 4), number(b, 4), str(c)) for a, b, c in zip(edges[:-1], edges[1:], counts, strict=True)],
        (
            Key(
                "bar",
                "blue",
                "held-out rows" if limit >= width.max() else "held-out rows, the widest 1% in the last bar",
            ),
            Key("line", "ink", f"median, {number(median)}"),
            Key("dashed", "vermilion", f"without inputs, {number(ignorant)}"),
        ),
    )
