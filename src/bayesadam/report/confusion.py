"""The confusion matrix, which shows the classes that are mistaken for each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FixedTicker, NumeralTickFormatter, PlainText

from bayesadam.report.chart import FONT, Chart, blank, hover
from bayesadam.report.classification import answers
from bayesadam.report.palette import LIGHT
from bayesadam.report.values import printable

_SHOWN = 20
_LISTED = 60


def confusion(held: Mapping[str, Any], classes: Sequence[str]) -> Chart | None:
    """Return a chart of the counts of actual and predicted classes, limited to the classes with the most mistakes."""
    given = answers(held)
    if given is None:
        return None
    counts = np.zeros((given.classes, given.classes), dtype=int)
    np.add.at(counts, (given.label, given.predicted), 1)
    mistakes = counts - np.diag(counts.diagonal())
    busiest = np.argsort(-(mistakes.sum(0) + mistakes.sum(1)), kind="stable")[:_SHOWN]
    shown = np.sort(busiest)
    part = counts[np.ix_(shown, shown)]
    share = part / np.maximum(counts.sum(axis=1)[shown, None], 1)
    names = [str(classes[code]) for code in shown]
    actual, predicted = (grid.ravel() for grid in np.indices(part.shape))
    size = len(shown)
    plot = blank(
        "predicted",
        "actual",
        x_range=(-0.5, size - 0.5),
        y_range=(size - 0.5, -0.5),
        height=int(np.clip(34 * size + 90, 220, 640)),
        max_width=max(360, 62 * size + 140),
    )
    source = ColumnDataSource(
        {
            "actual": actual,
            "predicted": predicted,
            "actual_name": [printable(names[i]) for i in actual],
            "predicted_name": [printable(names[i]) for i in predicted],
            "count": part.ravel(),
            "text": [str(count) if count else "" for count in part.ravel()],
            "alpha": 0.75 * share.ravel(),
            "share": 100.0 * share.ravel(),
        }
    )
    cells = plot.rect(
        "predicted",
        "actual",
        1,
        1,
        source=source,
        fill_color=LIGHT["cell"],
        fill_alpha="alpha",
        line_color=LIGHT["grid"],
    )
    plot.text(
        "predicted",
        "actual",
        "text",
        source=source,
        text_align="center",
        text_baseline="middle",
        text_color=LIGHT["ink"],
        text_font=value(FONT),
        text_font_size="13px" if size <= 12 else "10px",
    )
    short = [printable(name, 14) for name in names]
    # Side by side, the labels must fit on a phone.
    upright = size * (7 * max(map(len, short)) + 8) <= 300
    for axis, angle in ((plot.xaxis[0], 0.0 if upright else 0.9), (plot.yaxis[0], 0.0)):
        axis.ticker = FixedTicker(ticks=list(range(size)))
        axis.formatter = NumeralTickFormatter()
        axis.major_label_overrides = {i: PlainText(text=name) for i, name in enumerate(short)}
        axis.major_label_orientation = angle or "horizontal"
    plot.xgrid[0].visible = plot.ygrid[0].visible = False
    entries = {"actual": "@actual_name", "predicted": "@predicted_name", "rows": "@count"}
    hover(plot, [cells], entries | {"of the actual class": "@share{%.1f}%"})
    pairs = sorted(((counts[a, p], a, p) for a, p in zip(*np.nonzero(counts), strict=True)), key=lambda c: -c[0])
    rows = pairs[:_LISTED]
    worst = np.unravel_index(mistakes.argmax(), mistakes.shape)
    summary = "none is wrong"
    if mistakes.any():
        summary = (
            f"{mistakes.sum()} are wrong, most often {classes[worst[0]]} taken for {classes[worst[1]]} "
            f"({mistakes[worst]} times)"
        )
    return Chart(
        "confusion",
        "Confusion matrix",
        "Rows are actual classes, columns predicted ones, numbers are counts: the diagonal is right, everything else "
        "is one class taken for another; a stronger colour is a larger share of the actual class."
        + (f" Shown are the {_SHOWN} classes with the most mistakes." if given.classes > _SHOWN else ""),
        f"Confusion matrix of {given.classes} classes and {len(given.label)} held-out rows; {summary}.",
        plot,
        ("actual", "predicted", "rows"),
        [(str(classes[a]), str(classes[p]), str(n)) for n, a, p in rows],
        wide=size > 8,
        thinned=len(pairs) > len(rows),
    )
