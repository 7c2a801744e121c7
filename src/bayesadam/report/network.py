"""Charts of the network: signal-to-noise ratios of its weights, pruning, and the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker

from bayesadam.report.chart import Chart, Key, blank, hover, span
from bayesadam.report.palette import DASHES, LIGHT, SERIES
from bayesadam.report.values import Array, every, number, percent, vector

_REMOVED = (0, 50, 75, 90, 95, 98, 99, 99.5, 99.9, 99.99)
_MEMBERS = 20
_SCORES = {"nll": "NLL", "rmse": "RMSE", "accuracy": "accuracy"}


def signal_to_noise(weights: Mapping[str, Any]) -> Chart | None:
    """Return a chart of the distribution of the weights' signal-to-noise ratios, given evenly spaced quantiles."""
    quantiles = vector(weights.get("signal_to_noise"))
    levels = np.linspace(0.0, 1.0, len(quantiles)) if len(quantiles) > 1 else np.zeros(len(quantiles))
    whole = np.isfinite(quantiles)  # a mean of exactly zero has a logarithm of minus infinity
    if whole.sum() < 2:
        return None
    below = float(np.interp(0.0, quantiles[whole], levels[whole]))
    quantiles, levels = quantiles[whole], levels[whole]
    plot = blank("log10 of |mean| / standard deviation", "share of weights below", y_range=(0, 1.02))
    if quantiles[0] < 0.0 < quantiles[-1]:
        plot.line([0, 0], [0, 1.02], line_color=LIGHT["muted"], line_dash="dashed", line_width=1.5)
    source = ColumnDataSource({"ratio": quantiles, "level": levels, "plain": 10.0**quantiles})
    line = plot.line("ratio", "level", source=source, line_color=LIGHT["blue"], line_width=2.5)
    hover(plot, [line], {"ratio": "@plain{%.3g}", "share below": "@level{%.3f}"}, "vline")
    rows = every(list(zip(levels, quantiles, strict=True)), 21)
    return Chart(
        "signal-to-noise",
        "Signal-to-noise of the weights",
        "Left of the dashed line a weight's standard deviation is larger than its mean: it is mostly noise.",
        f"Cumulative distribution of the weights' signal-to-noise ratios; {percent(below)} of the weights are below 1, "
        f"the median is {number(float(10.0 ** np.interp(0.5, levels, quantiles)))}.",
        plot,
        ("share of weights", "ratio below", "log10"),
        [(percent(level, 1), number(10.0**quantile), number(quantile)) for level, quantile in rows],
        (Key("line", "blue", "weights"), Key("dashed", "muted", f"ratio 1; below it {percent(below)}")),
    )


def pruning(weights: Mapping[str, Any], score: str) -> Chart | None:
    """Return a chart of a score against the share of pruned weights, where the noisiest are pruned first.

    The share that remains is on a logarithmic axis, so that 90% and 99.9% are far apart. A level that leaves no weight
    cannot be shown.
    """
    curve = weights.get("pruning") or {}
    fraction, value = vector(curve.get("fraction")), vector(curve.get(score))
    if not len(fraction) or not len(value):
        return None
    drawn = np.isfinite(fraction) & np.isfinite(value) & (fraction < 1.0)
    fraction, value = fraction[drawn], value[drawn]
    if len(fraction) < 2:
        return None
    order = np.argsort(fraction)
    fraction, value = fraction[order], value[order]
    left = 1.0 - fraction
    least = float(left.min())
    plot = blank("weights removed", _SCORES[score], x_range=(1.1, 0.9 * least), y_range=span(value), x_axis_type="log")
    ticks = [removed for removed in _REMOVED if 1.0 - removed / 100 >= 0.95 * least]
    places = {round(1.0 - removed / 100, 6): f"{removed:g}%" for removed in ticks}
    plot.xaxis[0].ticker = FixedTicker(ticks=list(places))
    plot.xgrid[0].ticker = FixedTicker(ticks=list(places))
    plot.xaxis[0].major_label_overrides = places  # type: ignore[assignment]
    plot.line([1.1, 0.9 * least], [value[0], value[0]], line_color=LIGHT["muted"], line_dash="dashed", line_width=1.5)
    source = ColumnDataSource({"left": left, "removed": 100.0 * fraction, "value": value})
    plot.line("left", "value", source=source, line_color=LIGHT["blue"], line_width=2)
    marks = plot.scatter("left", "value", source=source, size=7, fill_color=LIGHT["blue"], line_color=None)
    hover(plot, [marks], {"removed, %": "@removed{%.5g}", _SCORES[score]: "@value{%.5g}"})
    name = _SCORES[score]
    return Chart(
        f"pruning-{score}",
        f"{name} when weights are pruned",
        f"As far as the line stays level, weights can be removed at no cost "
        f"({'higher' if score == 'accuracy' else 'lower'} is better); those with the least signal go first.",
        f"{name} against the share of weights removed: {number(value[0])} with {percent(fraction[0])} removed, "
        f"{number(value[-1])} with {percent(fraction[-1], 1)}.",
        plot,
        ("removed", name),
        [(percent(f, 2), number(v, 4)) for f, v in zip(fraction, value, strict=True)],
        (Key("circle", "blue", name), Key("dashed", "muted", "nothing removed")),
    )


def history(training: Mapping[str, Any]) -> Chart | None:
    """Return a chart of the training loss of every member over the epochs."""
    members = [vector(member) for member in training.get("loss") or []]
    drawn = [(i, m) for i, m in enumerate(members) if np.isfinite(m).any()]
    longest = max((len(m) for _, m in drawn), default=0)
    if longest < 2:
        return None
    shown = every(drawn, _MEMBERS)
    values = np.concatenate([m[np.isfinite(m)] for _, m in shown])
    steep = bool(values.min() > 0 and values.max() > 30.0 * values.min())
    # The first epochs are often so much worse that the others could not be distinguished.
    limits = None if steep else span(np.array([values.min(), np.quantile(values, 0.99)]))
    plot = blank("epoch", "training loss", y_range=limits, y_axis_type="log" if steep else "linear")
    lines = []
    for place, (i, member) in enumerate(shown):
        epochs = np.flatnonzero(np.isfinite(member))
        source = ColumnDataSource(
            {"epoch": epochs + 1.0, "value": member[epochs], "member": np.full(len(epochs), i + 1.0)}
        )
        lines.append(
            plot.line(
                "epoch",
                "value",
                source=source,
                line_color=LIGHT[SERIES[place % len(SERIES)]],
                line_dash=DASHES[place // len(SERIES) % len(DASHES)],
                line_width=1.5,
                line_alpha=0.85,
            )
        )
    hover(plot, lines, {"member": "@member{%d}", "epoch": "@epoch{%d}", "training loss": "@value{%.5g}"})
    listed = every(range(longest), 20)
    last = [m[np.isfinite(m)][-1] for _, m in drawn]

    def at(member: Array, epoch: int) -> str:
        return number(float(member[epoch]) if epoch < len(member) else None)

    note = f" {_MEMBERS} of {len(drawn)} are shown." if len(drawn) > _MEMBERS else ""
    return Chart(
        "training-loss",
        "Training loss",
        "Each line is one member of the ensemble; lines that have become level, and end close together, have been "
        f"trained for long enough.{note}",
        f"Training loss of {len(drawn)} members over {longest} epochs, ending between {number(min(last))} and "
        f"{number(max(last))}.",
        plot,
        ("epoch", *(f"member {i + 1}" for i, _ in shown)),
        [(str(epoch + 1), *(at(member, epoch) for _, member in shown)) for epoch in listed],
        _members(shown) if len(shown) <= len(SERIES) * len(DASHES) else (),
        thinned=longest > 20,
    )


def _members(shown: list[tuple[int, Array]]) -> tuple[Key, ...]:
    marks = {"solid": "line", "dashed": "dashed", "dotted": "dotted"}
    return tuple(
        Key(
            marks[DASHES[place // len(SERIES) % len(DASHES)]],
            SERIES[place % len(SERIES)],
            f"{i + 1}" if place else f"member {i + 1}",
        )
        for place, (i, _) in enumerate(shown)
    )
