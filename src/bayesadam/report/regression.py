"""Charts of a regression: predictions with intervals, and the coverage of the intervals."""

from __future__ import annotations

import numpy as np
from scipy import stats

from bayesadam.report.chart import Chart, limits, percent_ticks, short_ticks
from bayesadam.report.numbers import column, percent
from bayesadam.report.predicted import LEVEL, PredictedNumbers


def predictions(rows: PredictedNumbers, target: str) -> Chart:
    """Return a chart of predicted against actual values, with intervals; those that miss are marked differently."""
    inside = rows.inside
    beyond = 0.02 if len(rows) >= 100 else 0.0  # a few very long intervals would compress all others
    reach = limits(rows.y, rows.mean, np.quantile(rows.lower, beyond), np.quantile(rows.upper, 1.0 - beyond))
    chart = Chart(
        "predictions",
        "Predicted against actual",
        f"Each mark is a held-out row with its {LEVEL:.0%} interval; on the dashed line the prediction is right, and "
        "an interval that crosses the line contains the actual value.",
        f"actual {target}",
        f"predicted {target}",
        x_range=limits(rows.y, rows.mean),
        y_range=reach,
        height=440,
        wide=True,
    )
    short_ticks(chart.plot.xaxis[0], rows.y)
    short_ticks(chart.plot.yaxis[0], rows.y)
    chart.line(reach, reach, "muted", dash="dashed", key="predicted = actual")
    crowd = float(np.clip(250.0 / len(rows), 0.2, 1.0))
    texts = column(np.concatenate([rows.y, rows.mean, rows.lower, rows.upper]))
    columns = {"row of the file": [f"{row:.0f}" for row in rows.row]}
    for i, name in enumerate(("actual", "predicted", "from", "to")):
        columns[name] = texts[i * len(rows) : (i + 1) * len(rows)]
    order = np.argsort(rows.y)
    # Misses are drawn last, on top of the other rows.
    looks = ((inside, "circle", "blue", "inside"), (~inside, "triangle", "vermilion", "outside"))
    for part, marker, colour, words in looks:
        at = order[part[order]]
        chart.band(rows.y[at], rows.lower[at], rows.upper[at], colour, alpha=0.5 * crowd, width=1.5)
        shown = {name: [values[i] for i in at] for name, values in columns.items()}
        key = f"{words} its interval ({percent(part.mean())})"
        chart.points(rows.y[at], rows.mean[at], colour, shown, size=6, marker=marker, alpha=crowd, key=key)
    chart.table({name: [values[i] for i in order] for name, values in columns.items()})
    return chart


def coverage(rows: PredictedNumbers) -> Chart:
    """Return a chart of the coverage of central intervals of every level, from the probability integral transform."""
    levels = np.concatenate([np.arange(0.05, 0.951, 0.05), [0.98, 0.99]])
    reached = (2.0 * np.abs(rows.pit - 0.5) <= levels[:, None]).mean(axis=1)
    low, high = (ends / len(rows) for ends in stats.binom.interval(0.95, len(rows), levels))
    chart = Chart(
        "coverage",
        "Interval coverage",
        "On the dashed line, intervals contain as many actual values as they promise. Below it they are too narrow, "
        "above it too wide; the band is the range that chance allows.",
        "promised coverage",
        "rows inside",
        x_range=(0, 1.03),
        y_range=(0, 1.03),
    )
    percent_ticks(chart.plot.xaxis[0], chart.plot.yaxis[0])
    chart.band(levels, low, high, "ink", key="expected by chance, 95%")
    chart.line([0, 1], [0, 1], "muted", dash="dashed", key="as promised")
    chart.line(levels, reached, "blue", key="rows that the networks have not seen")
    texts = {
        "promised": [percent(level) for level in levels],
        "reached": [percent(share, 1) for share in reached],
        "by chance": [f"{percent(a, 1)} to {percent(b, 1)}" for a, b in zip(low, high, strict=True)],
    }
    chart.points(levels, reached, "blue", texts, size=6)
    chart.table(texts)
    return chart
