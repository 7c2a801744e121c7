"""A chart of the training: the validation loss by epoch, as it was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bayesadam.report.chart import Chart, limits
from bayesadam.report.numbers import column

_MEMBERS = 20


def validation(training: Mapping[str, Any]) -> Chart | None:
    """Return a chart of each member's NLL of the rows that it left out; ``None`` unless three epochs were recorded."""
    epochs = np.array(training.get("epochs") or [], dtype=np.float64)
    members = [np.array(member, dtype=np.float64) for member in training.get("validation_nll") or []]
    members = [member for member in members if np.isfinite(member).all()][:_MEMBERS]
    if len(epochs) < 3 or not members:
        return None
    values = np.array(members)
    # The first epochs are often so much worse that the others could not be distinguished.
    most = float(np.quantile(values, 0.95))
    low, high = limits([values.min(), most])
    kept = float(training["kept_epoch"])
    chart = Chart(
        "validation",
        "Validation by epoch",
        "Each line is one network: the negative log-likelihood of the training rows that it left out, under its mean "
        "weights, at the marked epochs. The networks of the dashed epoch are used.",
        "epoch",
        "validation NLL (nats per row)",
        x_range=limits(epochs),
        y_range=(low, high),
        wide=True,
    )
    # One line with gaps, because Bokeh takes long for many.
    x = np.tile(np.append(epochs, np.nan), len(values))
    y = np.append(values, np.full((len(values), 1), np.nan), axis=1).ravel()
    chart.line(x, y, "blue", width=1.0, key=f"{len(values)} networks")
    there = y <= most
    texts = {"epoch": [f"{epoch:.0f}" for epoch in x[there]], "NLL": column(y[there], 3)}
    chart.points(x[there], y[there], "blue", texts, size=3)
    chart.line([kept, kept], [low, high], "vermilion", dash="dashed", key=f"epoch {kept:.0f}, which is used")
    numbers = {"epoch": [f"{epoch:.0f}" for epoch in epochs]}
    for name, quantile in (("best network", 0.0), ("median", 0.5), ("worst network", 1.0)):
        numbers[name] = column(np.quantile(values, quantile, axis=0))
    chart.table(numbers)
    return chart
