"""The distribution of the target: a histogram of a number, or the counts of the classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bayesadam.report.chart import Chart, histogram, horizontal_bars, short_ticks
from bayesadam.report.numbers import column, count, percent

_CLASSES = 20


def distribution(given: Mapping[str, Any], target: str) -> Chart | None:
    """Return a chart of the target's histogram: "edges" or "labels", and "counts"; ``None`` without counts."""
    counts = np.array(given.get("counts") or [], dtype=np.int64)
    if not counts.sum() > 0:
        return None
    if "labels" in given:
        return _classes(target, given["labels"], counts)
    edges = np.array(given["edges"])
    chart = Chart(
        "target",
        f"Distribution of {target}",
        "Each bar counts the rows whose target lies in that range.",
        target,
        "rows",
        x_range=(edges[0], edges[-1]),
        y_range=(0, 1.08 * counts.max()),
        height=240,
        wide=True,
    )
    short_ticks(chart.plot.xaxis[0], edges)
    histogram(chart, edges, counts, column(edges, 3))
    return chart


def _classes(target: str, labels: list[str], counts: Any) -> Chart:
    order = np.argsort(-counts, kind="stable")[:_CLASSES]
    chart = Chart(
        "target",
        f"Classes of {target}",
        "Each bar counts the rows of one class"
        + (f"; the {_CLASSES} largest of {len(labels)} are shown." if len(labels) > _CLASSES else "."),
        "rows",
        "",
        x_range=(0, 1.08 * counts.max()),
        y_range=(len(order) - 0.4, -0.6),
        height=max(150, 32 * len(order) + 60),
        wide=True,
    )
    short_ticks(chart.plot.xaxis[0], counts)
    texts = {
        "class": [labels[i] for i in order],
        "rows": [count(int(counts[i])) for i in order],
        "share": [percent(counts[i] / counts.sum(), 1) for i in order],
    }
    horizontal_bars(chart, texts["class"], counts[order], texts)
    chart.table(texts)
    return chart
