"""Charts of the inputs: their importance for the predictions, and their effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayesadam.report.chart import Chart, limits, percent_ticks, short_ticks
from bayesadam.report.numbers import canvas_text, column, number, percent
from bayesadam.report.palette import DASHES, LIGHT, SERIES

_SHOWN = 15


def importance(entries: Sequence[Mapping[str, Any]], task: str, target: str) -> Chart:
    """Return a bar chart of the increase of the error if the values of an input are shuffled."""
    shown = sorted(entries, key=lambda entry: -entry["gain"])[:_SHOWN]
    gain, error = np.array([[entry[name] for entry in shown] for name in ("gain", "error")], dtype=np.float64)
    unit = f"error added ({target})" if task == "regression" else "log loss added (nats per row)"
    chart = Chart(
        "importance",
        "Inputs that the predictions depend on",
        "How much larger the error is if an input has the values of other rows; the lines are two standard deviations "
        "over several shuffles. If inputs carry the same information, each of them may matter little."
        + (f" The {_SHOWN} largest of {len(entries)} are shown." if len(entries) > _SHOWN else ""),
        unit,
        "",
        x_range=limits([0.0], gain - 2 * error, gain + 2 * error),
        y_range=(len(shown) - 0.4, -0.6),
        height=max(150, 28 * len(shown) + 60),
        wide=True,
    )
    short_ticks(chart.plot.xaxis[0], gain)
    texts = {
        "input": [str(entry["name"]) for entry in shown],
        unit: [number(value) for value in gain],
        "two deviations": [number(2 * value) for value in error],
    }
    pointed = dict(zip(("input", "error added", "two deviations"), texts.values(), strict=True))
    place = np.arange(len(shown))
    chart.ticks(chart.plot.yaxis[0], place.tolist(), texts["input"])
    chart.plot.ygrid[0].visible = False
    chart.boxes(np.minimum(gain, 0.0), np.maximum(gain, 0.0), place - 0.34, place + 0.34, "blue", pointed)
    chart.plot.segment(gain - 2 * error, place, gain + 2 * error, place, line_color=LIGHT["ink"], line_width=1.5)
    chart.table(texts)
    return chart


def dependence(entries: Sequence[Mapping[str, Any]], task: str, target: str, classes: Sequence[str]) -> list[Chart]:
    """Return a chart for some inputs: the mean prediction, with bands, if all rows had the same value of the input."""
    return [_effect(entry, f"dependence-{i}", task, target, classes) for i, entry in enumerate(entries)]


def _effect(entry: Mapping[str, Any], name: str, task: str, target: str, classes: Sequence[str]) -> Chart:
    regression = task == "regression"
    curves = [np.array([[curve["mean"]] * 2, *curve["bands"]], dtype=np.float64) for curve in entry["curves"]]
    chart = Chart(
        name,
        f"Effect of {entry['name']}",
        f"The mean {'prediction' if regression else 'probability'} if all of these rows had one value of this input "
        "and kept their others. "
        + (
            "Bands are two standard deviations."
            if regression
            else "Bands hold 90% of the networks that the posterior allows."
        ),
        str(entry["name"]),
        f"predicted {target}" if regression else "probability",
        x_range=limits(entry["order"] or [0.0]),
        y_range=limits(*curves) if regression else (-0.03, 1.03),
    )
    x, width = _with_axis(chart, entry)
    if regression:
        short_ticks(chart.plot.yaxis[0], entry["curves"][0]["mean"])
    else:
        percent_ticks(chart.plot.yaxis[0])
    table = {"value": entry["at"]}
    keys = [("of the whole prediction", 0.14), ("of the networks alone", 0.3)] if regression else [("", 0.15)]
    for i, curve in enumerate(entry["curves"]):
        label = "mean prediction" if regression else str(classes[curve["label"]])
        colour, ((mean, _), *bands) = SERIES[i % len(SERIES)], curves[i]
        for (low, high), (key, alpha) in zip(bands, keys, strict=True):
            chart.band(x, low, high, colour, width=width, alpha=alpha, key=key)
        if width is None:
            chart.line(x, mean, colour, dash=DASHES[i % len(DASHES)])
        ends = np.array([mean, *bands[0]])
        texts = np.reshape(column(ends.ravel()) if regression else [percent(end) for end in ends.ravel()], ends.shape)
        table[label] = [f"{middle} ({low} to {high})" for middle, low, high in texts.T]
        pointed = {"value": entry["at"], "curve": [label] * len(x), "mean": table[label]}
        chart.points(x, mean, colour, pointed, size=6, key=label)
    chart.table(table)
    return chart


def _with_axis(chart: Chart, entry: Mapping[str, Any]) -> tuple[Any, float | None]:
    """Label the x-axis by categories, by some of the dates, or by numbers.

    Returns:
        The places of the values on the axis, and the width of the bands of categories.
    """
    axis, texts = chart.plot.xaxis[0], entry["at"]
    if entry["order"] is None:
        x = np.arange(len(texts), dtype=np.float64)
        chart.plot.x_range.update(start=-0.6, end=len(x) - 0.4)
        chart.ticks(axis, x.tolist(), texts, 10)
        if sum(len(canvas_text(text, 10)) + 3 for text in texts) > 40:
            axis.major_label_orientation = 0.7
        return x, 14.0
    x = np.array(entry["order"], dtype=np.float64)
    if entry["kind"] == "date":
        some = sorted({0, len(x) // 2, len(x) - 1})
        chart.ticks(axis, x[some].tolist(), [texts[i] for i in some])
    else:
        short_ticks(axis, x)
    return x, None
