"""Charts of the inputs: their importance for predictions and uncertainty, and their effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, NumeralTickFormatter, PlainText

from bayesadam.report.chart import Chart, Key, blank, hover, span, units
from bayesadam.report.palette import DASHES, LIGHT, SERIES
from bayesadam.report.values import Array, number, percent, plain, printable, vector

_SHOWN = 15
_ERROR = 2.0


def importance(entries: Sequence[Mapping[str, Any]], task: str) -> list[Chart]:
    """Return bar charts of the increase of the NLL and of the change of the uncertainty if an input is permuted."""
    if not entries:
        return []
    spread = "the standard deviation" if task == "regression" else "the entropy"
    gain = vector([entry["nll"] for entry in entries])
    error = vector([entry["error"] for entry in entries])
    change = vector([entry["spread"] for entry in entries])
    change = np.expm1(change) if task == "regression" else change
    names = [str(entry["name"]) for entry in entries]
    first = int(np.nan_to_num(gain).argmax())
    second = int(np.nan_to_num(change).argmax())
    unit = "change of the standard deviation" if task == "regression" else "change of the entropy, nats"

    def text(value: float) -> str:
        return percent(value) if task == "regression" else number(value)

    return [
        _bars(
            "importance",
            "Inputs that the predictions depend on",
            "The increase of the negative log-likelihood of held-out rows if an input has the values of other rows; "
            "the lines are two standard errors. If inputs carry the same information, each of them may matter little.",
            f"Bars for {len(names)} inputs; the largest is {names[first]}, {number(gain[first])} nats per row.",
            names,
            gain,
            _ERROR * error,
            "nats per row that are lost",
            [(name, number(g), number(_ERROR * e)) for name, g, e in zip(names, gain, error, strict=True)],
            ("input", "nats per row", "two standard errors"),
        ),
        _bars(
            "importance-uncertainty",
            "Inputs that the uncertainty depends on",
            f"By how much {spread} of a prediction changes, up or down, on average, if an input has the value of "
            "another row.",
            f"Bars for {len(names)} inputs; the largest is {names[second]}, {text(change[second])}.",
            names,
            change,
            None,
            unit,
            [(name, text(c)) for name, c in zip(names, change, strict=True)],
            ("input", unit),
            share=task == "regression",
        ),
    ]


def _bars(
    chart: str,
    title: str,
    reading: str,
    label: str,
    names: Sequence[str],
    values: Array,
    half: Array | None,
    unit: str,
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    *,
    share: bool = False,
) -> Chart:
    order = np.argsort(-np.nan_to_num(values), kind="stable")[:_SHOWN]
    place = np.arange(len(order))
    value = np.nan_to_num(values[order])
    ends = np.zeros(len(order)) if half is None else np.nan_to_num(half[order])
    limits = span(np.minimum(value - ends, 0.0), np.maximum(value + ends, 0.0))
    height = max(150, 28 * len(order) + 60)
    plot = blank(unit, "", x_range=limits, y_range=(len(order) - 0.4, -0.6), height=height)
    plot.yaxis[0].ticker = FixedTicker(ticks=place.tolist())
    plot.yaxis[0].formatter = NumeralTickFormatter()
    plot.yaxis[0].major_label_overrides = {i: PlainText(text=printable(names[j], 18)) for i, j in enumerate(order)}
    plot.ygrid[0].visible = False
    if share:
        plot.xaxis[0].formatter = NumeralTickFormatter(format="0%")
    source = ColumnDataSource(
        {
            "place": place,
            "value": value,
            "low": value - ends,
            "high": value + ends,
            "name": [printable(names[j]) for j in order],
        }
    )
    bars = plot.hbar(
        y="place",
        height=0.65,
        right="value",
        source=source,
        fill_color=LIGHT["blue"],
        fill_alpha=0.55,
        line_color=LIGHT["blue"],
    )
    if half is not None:
        plot.segment("low", "place", "high", "place", source=source, line_color=LIGHT["ink"], line_width=1.5)
    hover(plot, [bars], {"input": "@name", unit: "@value{%.3g}"})
    more = f" The {_SHOWN} largest of {len(names)} are shown." if len(names) > _SHOWN else ""
    return Chart(chart, title, reading + more, label, plot, header, [rows[j] for j in order], thinned=bool(more))


def dependence(entries: Sequence[Mapping[str, Any]], task: str, target: str, classes: Sequence[str]) -> list[Chart]:
    """Return a chart for some inputs: the mean prediction, with bands, if all rows had the same value of the input."""
    made = []
    for place, entry in enumerate(entries):
        if len(entry.get("at") or ()) < 2:
            continue
        made.append(
            _regression(entry, place, target)
            if task == "regression"
            else _classification(entry, place, target, classes)
        )
    return made


def _regression(entry: Mapping[str, Any], place: int, target: str) -> Chart:
    name = str(entry["name"])
    mean, epistemic, std = (vector(entry[key]) for key in ("mean", "epistemic", "std"))
    at = [printable(plain(value)) for value in entry["at"]]
    x = _axis_values(entry)
    plot = _axes(entry, f"predicted {target}", span(mean - 2 * std, mean + 2 * std))
    units(plot.yaxis[0], mean)
    arrays = {"x": x, "mean": mean, "at": at}
    arrays |= {"inner_low": mean - 2 * epistemic, "inner_high": mean + 2 * epistemic}
    source = ColumnDataSource(arrays | {"low": mean - 2 * std, "high": mean + 2 * std})
    if entry.get("order") is None:
        plot.segment("x", "low", "x", "high", source=source, line_color=LIGHT["blue"], line_alpha=0.2, line_width=14)
        plot.segment(
            "x", "inner_low", "x", "inner_high", source=source, line_color=LIGHT["blue"], line_alpha=0.45, line_width=14
        )
    else:
        plot.varea("x", "low", "high", source=source, fill_color=LIGHT["blue"], fill_alpha=0.14)
        plot.varea("x", "inner_low", "inner_high", source=source, fill_color=LIGHT["blue"], fill_alpha=0.3)
        plot.line("x", "mean", source=source, line_color=LIGHT["blue"], line_width=2.5)
    marks = plot.scatter("x", "mean", source=source, size=6, fill_color=LIGHT["blue"], line_color=None)
    hover(plot, [marks], {name_of(entry): "@at", "predicted": "@mean{%.5g}"})
    least, most = int(mean.argmin()), int(mean.argmax())
    return Chart(
        f"dependence-{place}",
        f"Effect of {name}",
        "The mean prediction if the same held-out rows all had one value of this input and kept their others. The "
        "inner band is two standard deviations of the network's own uncertainty, the outer band two of the whole "
        "prediction.",
        f"From {number(mean[least])} at {at[least]} to {number(mean[most])} at {at[most]}.",
        plot,
        (name, f"predicted {target}", "epistemic deviation", "deviation"),
        [(a, number(m), number(e, 2), number(s, 2)) for a, m, e, s in zip(at, mean, epistemic, std, strict=True)],
        (
            Key("line" if entry.get("order") else "circle", "blue", "mean prediction"),
            Key("bar", "blue", "2 epistemic deviations"),
            Key("band", "blue", "2 deviations in all"),
        ),
    )


def _classification(entry: Mapping[str, Any], place: int, target: str, classes: Sequence[str]) -> Chart:
    name, at, x = str(entry["name"]), [printable(plain(value)) for value in entry["at"]], _axis_values(entry)
    plot = _axes(entry, "probability", (0.0, 1.0))
    plot.yaxis[0].formatter = NumeralTickFormatter(format="0%")
    keys, series, rows = [], [], [at]
    for i, curve in enumerate(entry["classes"]):
        mean, low, high = (vector(curve[key]) for key in ("mean", "low", "high"))
        label, colour, dash = str(classes[curve["label"]]), SERIES[i % len(SERIES)], DASHES[i % len(DASHES)]
        source = ColumnDataSource({"x": x, "mean": mean, "low": low, "high": high, "at": at})
        if entry.get("order") is None:
            plot.segment(
                "x", "low", "x", "high", source=source, line_color=LIGHT[colour], line_alpha=0.35, line_width=8
            )
        else:
            plot.varea("x", "low", "high", source=source, fill_color=LIGHT[colour], fill_alpha=0.16)
            plot.line("x", "mean", source=source, line_color=LIGHT[colour], line_dash=dash, line_width=2.5)
        series.append(plot.scatter("x", "mean", source=source, size=6, fill_color=LIGHT[colour], line_color=None))
        keys.append(Key({"solid": "line"}.get(dash, dash), colour, label))
        rows.append([f"{percent(m)} ({percent(a)} to {percent(b)})" for m, a, b in zip(mean, low, high, strict=True)])
    hover(plot, series, {name_of(entry): "@at", "probability": "@mean{%.3f}"})
    labels = [str(classes[curve["label"]]) for curve in entry["classes"]]
    return Chart(
        f"dependence-{place}",
        f"Effect of {name}",
        "The mean probability if the same held-out rows all had one value of this input and kept their others; bands "
        "hold 90% of the networks that the posterior allows.",
        f"Probabilities of {len(labels)} of {len(classes)} classes of {target} at {len(at)} values of {name}.",
        plot,
        (name, *labels),
        list(zip(*rows, strict=True)),
        tuple(keys),
    )


def name_of(entry: Mapping[str, Any]) -> str:
    """Return the label of a value under the pointer, which must not be the user's name of the input."""
    return "level" if entry.get("order") is None else "value"


def _axis_values(entry: Mapping[str, Any]) -> Array:
    order = entry.get("order")
    return np.arange(len(entry["at"]), dtype=np.float64) if order is None else vector(order)


def _axes(entry: Mapping[str, Any], y: str, reach: tuple[float, float]) -> Any:
    """Return axes for numbers, or with a tick for each level. Dates are counted in days and labelled by their texts."""
    x, at = _axis_values(entry), [str(value) for value in entry["at"]]
    levels = entry.get("order") is None
    limits = (-0.6, len(x) - 0.4) if levels else span(x)
    plot = blank(str(entry["name"]), y, x_range=limits, y_range=reach)
    dated = not levels and any(not _is_number(text) for text in at)
    if levels or dated:
        shown = range(len(x)) if levels else sorted({0, len(x) // 2, len(x) - 1})
        plot.xaxis[0].ticker = FixedTicker(ticks=[float(x[i]) for i in shown])
        plot.xaxis[0].formatter = NumeralTickFormatter()
        plot.xaxis[0].major_label_overrides = {float(x[i]): PlainText(text=printable(at[i], 10)) for i in shown}
        if levels and len(x) > 3:
            plot.xaxis[0].major_label_orientation = 0.7
    else:
        units(plot.xaxis[0], x)
    return plot


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
