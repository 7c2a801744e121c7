"""Charts of errors against predicted uncertainty, for regression and classification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, NumeralTickFormatter

from bayesadam.report import classification
from bayesadam.report.chart import Chart, Key, blank, hover, span, units
from bayesadam.report.palette import LIGHT
from bayesadam.report.values import Array, columns, equal_counts, number, percent, rounded, standard_error

_PER_GROUP = 10

_WIDE = 0.5
"""Width of the range of an epistemic share above which it is called unknown."""


@dataclass(frozen=True)
class Errors:
    """Actual and expected errors of the rows.

    Attributes:
        actual: Squared error, or 1 if the class is wrong, ``(N,)``.
        expected: Expectation of the error under the model: predictive variance, or one minus the confidence, ``(N,)``.
        regression: Whether means are shown as their roots, in the units of the target.
    """

    actual: Array
    expected: Array
    regression: bool

    def score(self, contributions: Array) -> float:
        """Return the root mean squared error, or the error rate."""
        mean = float(contributions.mean())
        return float(np.sqrt(mean)) if self.regression else mean

    def text(self, score: float) -> str:
        """Return a score as text."""
        return rounded(score) if self.regression else percent(score, 1)


def errors(held: Mapping[str, Any], task: str) -> Errors | None:
    """Return the errors of the held-out rows; ``None`` if there are none."""
    if task == "regression":
        y, mean, std = columns(held, "y", "mean", "std")
        return Errors((y - mean) ** 2, std**2, True) if len(y) else None
    given = classification.answers(held)
    return Errors((~given.right).astype(np.float64), 1.0 - given.confidence, False) if given else None


def error_by_uncertainty(held: Mapping[str, Any], task: str, target: str) -> Chart | None:
    """Return a chart of the error of rows grouped by predicted uncertainty."""
    given = errors(held, task)
    if given is None or len(given.actual) < 2 * _PER_GROUP:
        return None
    groups = equal_counts(given.expected, 10, _PER_GROUP)
    expected = np.array([given.score(given.expected[group]) for group in groups])
    actual = np.array([given.score(given.actual[group]) for group in groups])
    spread = [2.0 * standard_error(given.actual[group]) for group in groups]
    means = [given.actual[group].mean() for group in groups]
    ends = [
        np.clip([m - s, m + s], 0.0, None if task == "regression" else 1.0) for m, s in zip(means, spread, strict=True)
    ]
    low, high = np.sqrt(np.array(ends).T) if task == "regression" else np.array(ends).T
    if task == "regression":
        labels, unit = ("predicted standard deviation", f"root mean squared error ({target})"), "RMSE"
    else:
        labels, unit = ("predicted share of errors", "actual share of errors"), "share wrong"
    limits = span(expected, actual, np.zeros(1))
    reach = span(expected, actual, high, np.zeros(1))
    plot = blank(labels[0], labels[1], x_range=(0, span(expected)[1]), y_range=(min(0.0, reach[0] / 4), reach[1]))
    for axis in (plot.xaxis[0], plot.yaxis[0]):
        if task == "regression":
            units(axis, expected, high)
        else:
            axis.formatter = NumeralTickFormatter(format="0.[0]%")
    plot.line([0, limits[1]], [0, limits[1]], line_color=LIGHT["muted"], line_dash="dashed", line_width=1.5)
    rows = np.array([len(group) for group in groups])
    source = ColumnDataSource({"x": expected, "y": actual, "low": low, "high": high, "rows": rows.astype(float)})
    plot.segment("x", "low", "x", "high", source=source, line_color=LIGHT["blue"], line_width=1.5)
    marks = plot.scatter("x", "y", source=source, size=9, fill_color=LIGHT["blue"], line_color=LIGHT["blue"])
    hover(plot, [marks], {"predicted": "@x{%.5g}", "actual": "@y{%.5g}", "rows": "@rows{%d}"})
    text = given.text
    return Chart(
        "error-by-uncertainty",
        "Error against predicted uncertainty",
        "Rows are grouped from the most certain to the least certain. If the marks rise along the dashed line, the "
        "predicted uncertainty has the size of the error; bars are two standard errors.",
        f"{len(groups)} groups of rows: from {text(actual[0])} where {text(expected[0])} is predicted to "
        f"{text(actual[-1])} where {text(expected[-1])} is predicted ({unit}).",
        plot,
        ("predicted", f"actual ({unit})", "from", "to", "rows"),
        [
            (text(a), text(b), text(c), text(d), str(n))
            for a, b, c, d, n in zip(expected, actual, low, high, rows, strict=True)
        ],
        (
            Key("circle", "blue", f"groups of about {rows[0]} held-out rows"),
            Key("dashed", "muted", "actual = predicted"),
        ),
    )


def rejection(held: Mapping[str, Any], task: str, target: str) -> Chart | None:
    """Return a chart of the error of the remaining rows when the most uncertain rows are dropped."""
    given = errors(held, task)
    if given is None or len(given.actual) < 2 * _PER_GROUP:
        return None
    total = len(given.actual)
    kept = np.unique(np.linspace(max(5, total // 20), total, min(40, total - 4)).round().astype(int))[::-1]

    def curve(key: Array) -> Array:
        ordered = given.actual[np.argsort(key, kind="stable")]
        return np.array([given.score(ordered[:n]) for n in kept])

    by_model, best, overall = curve(given.expected), curve(given.actual), given.score(given.actual)
    dropped = 100.0 * (1.0 - kept / total)
    label = f"root mean squared error ({target})" if task == "regression" else "share wrong"
    reach = span(by_model, best, np.array([0.0, overall]))
    plot = blank("least certain rows dropped, %", label, x_range=(0, 100), y_range=(min(0.0, reach[0] / 4), reach[1]))
    if task == "regression":
        units(plot.yaxis[0], by_model)
    else:
        plot.yaxis[0].formatter = NumeralTickFormatter(format="0.[0]%")
    plot.line([0, 100], [overall, overall], line_color=LIGHT["muted"], line_dash="dashed", line_width=1.5)
    plot.line(dropped, best, line_color=LIGHT["green"], line_dash="dotted", line_width=2)
    source = ColumnDataSource({"dropped": dropped, "model": by_model, "best": best})
    line = plot.line("dropped", "model", source=source, line_color=LIGHT["blue"], line_width=2.5)
    plot.scatter("dropped", "model", source=source, size=5, fill_color=LIGHT["blue"], line_color=None)
    entries = {"dropped, %": "@dropped{%.0f}", "error of the rest": "@model{%.5g}", "at best": "@best{%.5g}"}
    hover(plot, [line], entries, "vline")
    half = int(np.abs(dropped - 50.0).argmin())
    return Chart(
        "rejection",
        "Leaving out what it is unsure of",
        "The faster the line falls, the better the model identifies the rows on which it is wrong. The dotted line is "
        "the best possible order, and the dashed line a random order.",
        f"Error of the rows kept: {given.text(overall)} of all, {given.text(by_model[half])} when the least certain "
        "half is dropped.",
        plot,
        ("dropped", "error of the rest", "at best"),
        [(f"{d:.0f}%", given.text(m), given.text(b)) for d, m, b in zip(dropped, by_model, best, strict=True)],
        (
            Key("line", "blue", "least certain first"),
            Key("dashed", "muted", "at random"),
            Key("dotted", "green", "largest error first"),
        ),
    )


def epistemic_share(held: Mapping[str, Any], task: str, error: float | None = None) -> Chart | None:
    """Return a chart of the share of epistemic uncertainty, for rows grouped by total uncertainty.

    Args:
        held: Columns of the held-out rows.
        task: "regression" or "classification".
        error: Standard deviation of the logarithm of the epistemic variance's factor, given the rows that members left
            out; ``None`` if it was not calibrated. The page states the range of two such deviations.
    """
    if task == "regression":
        total, part = (values**2 for values in columns(held, "std", "epistemic_std"))
        words = "variance"
    else:
        total, part = columns(held, "entropy", "mutual_information")
        words = "entropy"
    if not len(total) or not total.sum() > 0:
        return None
    groups = [group for group in equal_counts(total, 10, _PER_GROUP) if total[group].sum() > 0]
    share = np.clip([part[group].sum() / total[group].sum() for group in groups], 0.0, 1.0)
    place = np.arange(len(groups)) + 1.0
    plot = blank(
        "groups of rows, surest to least sure" if len(groups) > 1 else "held-out rows",
        f"share of the {words}",
        x_range=(0.4, len(groups) + 0.6),
        y_range=(0, 1),
    )
    plot.xgrid[0].visible = False
    plot.xaxis[0].ticker = [int(p) for p in place]
    plot.yaxis[0].formatter = NumeralTickFormatter(format="0%")
    rest = 1.0 - share
    source = ColumnDataSource({"place": place, "share": share, "one": np.ones(len(share)), "rest": rest})
    shared: dict[str, Any] = {"x": "place", "width": 0.8, "source": source}
    bars = [
        plot.vbar(
            **shared,
            bottom=0,
            top="share",
            fill_color=LIGHT["blue"],
            fill_alpha=0.75,
            line_color=LIGHT["blue"],
        ),
        plot.vbar(
            **shared,
            bottom="share",
            top="one",
            fill_color=LIGHT["vermilion"],
            fill_alpha=0.12,
            line_color=LIGHT["vermilion"],
            hatch_pattern="right_diagonal_line",
            hatch_color=LIGHT["vermilion"],
            hatch_alpha=0.6,
            hatch_scale=8,
        ),
    ]
    hover(plot, bars, {"group": "@place{%d}", "epistemic": "@share{%.3f}", "aleatoric": "@rest{%.3f}"})
    mean = float(part.sum() / total.sum())
    overall, known = percent(mean), f"{percent(mean)} of the {words} is epistemic over all rows"
    caption = (
        "The solid part is uncertainty about the weights, which more data would reduce. The hatched part is noise in "
        "the data, which only other inputs could reduce."
    )
    if error:
        low, high = mean * np.exp(-2.0 * error), min(1.0, mean * np.exp(2.0 * error))
        bounds = f"{percent(low)} to {percent(high)}"
        known += f" ({bounds} as far as the rows left out tell)"
        if high - low > _WIDE:
            overall = bounds
            caption = (
                "The solid part is uncertainty about the weights, the hatched part noise in the data. The rows that "
                f"members left out tell little about how the variance divides: from {bounds} may be epistemic. Only "
                "the sum of both parts is known."
            )
    return Chart(
        "epistemic",
        "Epistemic and aleatoric share",
        caption,
        f"Stacked bars for {len(groups)} groups of rows; {known}.",
        plot,
        ("group", "epistemic", "aleatoric", f"mean {words}"),
        [
            (str(i + 1), percent(s, 1), percent(1.0 - s, 1), number(float(total[group].mean())))
            for i, (s, group) in enumerate(zip(share, groups, strict=True))
        ],
        (Key("bar", "blue", f"epistemic ({overall} of all)"), Key("hatched", "vermilion", "aleatoric")),
    )
