"""The charts of the page: predictions, calibration, errors against uncertainty, and the effects of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from bayesadam.tables.report.chart import Chart, percent_axes
from bayesadam.tables.report.numbers import column, number, percent, short_text
from bayesadam.tables.report.palette import LIGHT, SERIES
from bayesadam.tables.report.predicted import LEVEL, Predicted, PredictedClasses, PredictedNumbers, weight_of
from bayesadam.tables.report.weighted import effective, mean_and_error


def predictions(rows: PredictedNumbers, target: str, place: str) -> Chart:
    """Return a chart of predicted against actual values, with intervals; those that miss are marked differently.

    A row is named by its ``place`` in the file: "line" or "row".
    """
    texts = column(np.concatenate([rows.y, rows.mean, rows.lower, rows.upper]))
    actual, mean, lower, upper = (texts[i * len(rows) : (i + 1) * len(rows)] for i in range(4))
    chart = Chart(
        "predictions",
        "Predicted against actual",
        f"Each mark is a held-out row with its {LEVEL:.0%} interval; on the dashed line the prediction is right, and "
        "an interval that crosses the line contains the actual value.",
        f"actual {target}",
        f"predicted {target}",
        {place: [f"{row:.0f}" for row in rows.row], "actual": actual, "predicted": mean, "from": lower, "to": upper},
        height=4.6,
    )
    chart.diagonal("predicted = actual", at=float(rows.y[0]))
    crowd = float(np.clip(250.0 / len(rows), 0.2, 1.0))
    # Misses are drawn last, on top of the other rows.
    for part, marker, colour, words in (
        (rows.inside, "o", "blue", "inside"),
        (~rows.inside, "^", "vermilion", "outside"),
    ):
        at = np.flatnonzero(part)
        bars = rows.y[at], rows.lower[at], rows.upper[at]
        chart.axes.vlines(*bars, color=LIGHT[colour], alpha=0.5 * crowd, linewidth=1.2)
        label = f"{words} its interval ({percent(float(np.average(part, weights=rows.weight)))})"
        look: dict[str, Any] = {"color": LIGHT[colour], "alpha": crowd, "markersize": 4, "label": label}
        chart.points(rows.y[at], rows.mean[at], at.tolist(), marker=marker, **look)
    beyond = 0.02 if len(rows) >= 100 else 0.0  # a few very long intervals would compress all others
    shown = [*rows.y, *rows.mean, np.quantile(rows.lower, beyond), np.quantile(rows.upper, 1.0 - beyond)]
    room = 0.04 * (max(shown) - min(shown)) or 1.0
    chart.axes.set_ylim(min(shown) - room, max(shown) + room)
    return chart


def coverage(rows: PredictedNumbers) -> Chart:
    """Return a chart of the coverage of central intervals of every level, from the probability integral transform."""
    levels = np.concatenate([np.arange(0.05, 0.951, 0.05), [0.98, 0.99]])
    reached = np.average(2.0 * np.abs(rows.pit - 0.5) <= levels[:, None], axis=1, weights=rows.weight)
    count = max(1, round(effective(len(rows), rows.weight)))
    low, high = (ends / count for ends in stats.binom.interval(0.95, count, levels))
    chart = Chart(
        "coverage",
        "Interval coverage",
        "On the dashed line, intervals contain as many actual values as they promise. Below it they are too narrow, "
        "above it too wide; the band is the range that chance allows.",
        "promised coverage",
        "rows inside",
        {
            "promised": [percent(level) for level in levels],
            "reached": [percent(share, 1) for share in reached],
            "by chance": [f"{percent(a, 1)} to {percent(b, 1)}" for a, b in zip(low, high, strict=True)],
        },
    )
    _calibration(chart, levels, reached, low, high)
    return chart


def reliability(rows: PredictedClasses) -> Chart:
    """Return a chart of accuracy against confidence in bins of equal width, with the range that chance allows."""
    places = np.ceil(10.0 * rows.confidence).clip(1.0, 10.0)
    bins = [np.flatnonzero(places == place) for place in np.unique(places)]
    confidence, correct = (
        np.array([np.average(values[part], weights=weight_of(rows, part)) for part in bins])
        for values in (rows.confidence, rows.right)
    )
    counts = np.array([max(1, round(effective(len(part), weight_of(rows, part)))) for part in bins])
    low, high = (ends / counts for ends in stats.binom.interval(0.95, counts, np.minimum(confidence, 1.0)))
    chart = Chart(
        "reliability",
        "Reliability",
        "On the dashed line, 80% of the rows that are predicted with 80% confidence are right. Below it the model is "
        "overconfident, above it underconfident; the band is the range that chance allows.",
        "confidence",
        "share that is right",
        {
            "confidence": [percent(one, 1) for one in confidence],
            "right": [percent(one, 1) for one in correct],
            "rows": [f"{len(part):,}" for part in bins],
            "by chance": [f"{percent(a)} to {percent(b)}" for a, b in zip(low, high, strict=True)],
        },
    )
    _calibration(chart, confidence, correct, low, high)
    return chart


def _calibration(chart: Chart, promised: Any, reached: Any, low: Any, high: Any) -> None:
    chart.axes.fill_between(
        promised, low, high, color=LIGHT["ink"], alpha=0.15, linewidth=0, label="expected by chance, 95%"
    )
    chart.diagonal("as promised")
    chart.axes.plot(promised, reached, color=LIGHT["blue"])
    rows, label = range(len(promised)), "rows not seen in training"
    chart.points(promised, reached, rows, color=LIGHT["blue"], markersize=5, label=label)
    percent_axes(chart.axes.xaxis, chart.axes.yaxis)


def error_by_uncertainty(rows: Predicted, target: str) -> Chart:
    """Return a chart of the error of rows, in up to ten groups by predicted uncertainty of at least ten rows each."""
    regression = isinstance(rows, PredictedNumbers)
    actual, expected = rows.errors
    groups = np.array_split(np.argsort(expected, kind="stable"), max(1, min(10, len(actual) // 10)))
    means = [mean_and_error(actual[group], weight_of(rows, group)) for group in groups]
    mean, noise = np.array(means).T * [[1.0], [2.0]]
    x = np.array([np.average(expected[group], weights=weight_of(rows, group)) for group in groups])
    low, high = np.clip([mean - noise, mean + noise], 0.0, None if regression else 1.0)
    if regression:
        mean, x, low, high = (np.sqrt(values) for values in (mean, x, low, high))

    def texts(values: Any) -> list[str]:
        return [number(value) if regression else percent(value, 1) for value in values]

    chart = Chart(
        "error-by-uncertainty",
        "Error against predicted uncertainty",
        "Rows are grouped from the most certain to the least certain. If the marks rise along the dashed line, the "
        "predicted uncertainty has the size of the error; bars are two standard errors.",
        f"predicted error ({target})" if regression else "predicted share of errors",
        f"actual error ({target})" if regression else "actual share of errors",
        {
            "predicted": texts(x),
            "actual": texts(mean),
            "two standard errors": [f"{a} to {b}" for a, b in zip(texts(low), texts(high), strict=True)],
            "rows": [f"{len(group):,}" for group in groups],
        },
    )
    chart.diagonal("actual = predicted")
    chart.axes.vlines(x, low, high, color=LIGHT["blue"], linewidth=1.5)
    label = f"groups of about {len(groups[0]):,} rows"
    chart.points(x, mean, range(len(x)), color=LIGHT["blue"], markersize=7, label=label)
    if not regression:
        percent_axes(chart.axes.xaxis, chart.axes.yaxis)
    return chart


_SINGLE_DATES = " Each mark is one date, with its season and day of the week, so that the marks show no trend."


def effect(entry: Mapping[str, Any], name: str, task: str, target: str, classes: Sequence[str]) -> Chart:
    """Return a chart of the mean prediction, with bands, if all rows had the same value of an input."""
    regression, texts = task == "regression", entry["at"]
    lines = [[curve["mean"], *(end for band in curve["bands"] for end in band)] for curve in entry["curves"]]
    curves = [np.array(line, dtype=np.float64) for line in lines]
    labels = ["mean prediction" if regression else f"is {classes[curve['label']]}" for curve in entry["curves"]]
    cells = []
    for curve in curves:
        shown = column(curve[:3].ravel()) if regression else [percent(end) for end in curve[:3].ravel()]
        cells.append([f"{mean} ({low} to {high})" for mean, low, high in np.reshape(shown, (3, -1)).T])
    bands = "two standard deviations" if regression else "90% of the networks that the posterior allows"
    chart = Chart(
        name,
        f"Effect of {entry['name']}",
        f"The mean {'prediction' if regression else 'probability'} if all of these rows had one value of this input "
        f"and kept their others. Bands are {bands}." + _SINGLE_DATES * (entry["kind"] == "date"),
        str(entry["name"]),
        f"predicted {target}" if regression else "probability",
        {
            "value": [text for _ in curves for text in texts],
            "curve": [label for label in labels for _ in texts],
            "mean": [cell for line in cells for cell in line],
        },
    )
    x = np.arange(len(texts)) if entry["order"] is None else np.array(entry["order"], dtype=np.float64)
    joined = entry["order"] is not None and entry["kind"] != "date"
    keys = [("of the whole prediction", 0.14), ("of the networks alone", 0.3)] if regression else [(None, 0.15)]
    for i, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        colour, dashes = LIGHT[SERIES[i % len(SERIES)]], ("-", "--", ":")[i % 3]
        for (key, alpha), low, high in zip(keys, curve[1::2], curve[2::2], strict=True):
            look = {"color": colour, "alpha": alpha, "label": key}
            if joined:
                chart.axes.fill_between(x, low, high, linewidth=0, **look)
            else:
                chart.axes.vlines(x, low, high, linewidth=12, **look)
        if joined:
            chart.axes.plot(x, curve[0], color=colour, linestyle=dashes)
        rows = range(i * len(x), (i + 1) * len(x))
        chart.points(x, curve[0], rows, color=colour, markersize=5, label=short_text(label, 22))
    chart.axes.xaxis.set_major_formatter("{x:.10g}")
    if entry["order"] is None:
        crowded = sum(len(text) for text in texts) > 40
        chart.axes.set_xticks(x, [short_text(text, 10) for text in texts], rotation=40 if crowded else 0)
        chart.axes.set_xlim(-0.6, len(x) - 0.4)
    elif entry["kind"] == "date":
        some = sorted({0, len(x) // 2, len(x) - 1})
        chart.axes.set_xticks(x[some], [texts[i] for i in some])
    if not regression:
        percent_axes(chart.axes.yaxis)
    return chart
