"""The distribution of the target: a histogram of a number, or the counts of the classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, NumeralTickFormatter, PlainText

from bayesadam.report.chart import Chart, blank, histogram, hover, units
from bayesadam.report.palette import LIGHT
from bayesadam.report.values import number, percent, printable, vector

_SHOWN = 20


def distribution(data: Mapping[str, Any], target: str) -> Chart | None:
    """Return a chart of ``data["target_histogram"]``, or ``None`` if there is no such entry."""
    given = data.get("target_histogram") or {}
    counts = vector(given.get("counts"))
    if not len(counts) or not np.isfinite(counts).all() or not counts.sum() > 0:
        return None
    if len(given.get("labels") or ()) == len(counts):
        return _classes(target, [str(label) for label in given["labels"]], counts.astype(int))
    edges = vector(given.get("edges"))
    if len(edges) != len(counts) + 1 or not np.isfinite(edges).all():
        return None
    plot = blank(target, "rows", y_range=(0, 1.08 * counts.max()), height=240)
    units(plot.xaxis[0], edges)
    histogram(plot, edges, counts)
    return Chart(
        "target",
        f"Distribution of {target}",
        "Each bar counts the rows whose target lies in that range.",
        f"Histogram of {target} over {counts.sum():,.0f} rows, from {number(edges[0])} to {number(edges[-1])}.",
        plot,
        ("from", "to", "rows"),
        [(number(a, 4), number(b, 4), f"{c:,.0f}") for a, b, c in zip(edges[:-1], edges[1:], counts, strict=True)],
        wide=True,
    )


def _classes(target: str, labels: list[str], counts: Any) -> Chart:
    order = np.argsort(-counts, kind="stable")[:_SHOWN]
    names, rows = [labels[i] for i in order], counts[order]
    place = np.arange(len(names))
    plot = blank(
        "rows",
        "",
        x_range=(0, 1.08 * rows.max()),
        y_range=(len(names) - 0.4, -0.6),
        height=max(150, 32 * len(names) + 60),
    )
    plot.yaxis[0].ticker = FixedTicker(ticks=place.tolist())
    plot.yaxis[0].formatter = NumeralTickFormatter()
    plot.yaxis[0].major_label_overrides = {i: PlainText(text=printable(name, 18)) for i, name in enumerate(names)}
    plot.ygrid[0].visible = False
    units(plot.xaxis[0], rows.astype(float))
    source = ColumnDataSource({"place": place, "count": rows, "name": [printable(name) for name in names]})
    bars = plot.hbar(
        y="place",
        height=0.7,
        right="count",
        source=source,
        fill_color=LIGHT["blue"],
        fill_alpha=0.55,
        line_color=LIGHT["blue"],
    )
    hover(plot, [bars], {"class": "@name", "rows": "@count"})
    total = counts.sum()
    return Chart(
        "target",
        f"Classes of {target}",
        "Each bar counts the rows of one class"
        + (f"; the {_SHOWN} largest of {len(labels)} are shown." if len(labels) > _SHOWN else "."),
        f"Counts of {len(labels)} classes over {total:,d} rows, from {names[0]} ({percent(rows[0] / total)}) down.",
        plot,
        ("class", "rows", "share"),
        [(name, f"{count:,d}", percent(count / total, 1)) for name, count in zip(names, rows, strict=True)],
        wide=True,
        thinned=len(labels) > _SHOWN,
    )
