"""Charts of errors against predicted uncertainty, and of the epistemic part of the uncertainty."""

from __future__ import annotations

import numpy as np
from scipy import stats

from bayesadam.report.chart import Chart, limits, percent_ticks, short_ticks
from bayesadam.report.numbers import count, equal_groups, number, percent
from bayesadam.report.predicted import FEW, Predicted, PredictedNumbers


def error_by_uncertainty(rows: Predicted, target: str) -> Chart | None:
    """Return a chart of the error of rows grouped by predicted uncertainty."""
    regression = isinstance(rows, PredictedNumbers)
    actual, expected = rows.errors
    if len(actual) < FEW or not np.isfinite(expected).all():
        return None
    groups = equal_groups(expected)
    noise = [2.0 * stats.sem(actual[group]) for group in groups]
    mean = np.array([actual[group].mean() for group in groups])
    x = np.array([expected[group].mean() for group in groups])
    low, high = np.clip([mean - noise, mean + noise], 0.0, None if regression else 1.0)
    if regression:
        mean, x, low, high = (np.sqrt(values) for values in (mean, x, low, high))
    chart = Chart(
        "error-by-uncertainty",
        "Error against predicted uncertainty",
        "Rows are grouped from the most certain to the least certain. If the marks rise along the dashed line, the "
        "predicted uncertainty has the size of the error; bars are two standard errors.",
        f"predicted error ({target})" if regression else "predicted share of errors",
        f"actual error ({target})" if regression else "actual share of errors",
        x_range=limits([0.0], x),
        y_range=limits([0.0], x, high),
    )
    if regression:
        short_ticks(chart.plot.xaxis[0], [0.0], x)
        short_ticks(chart.plot.yaxis[0], [0.0], high)
    else:
        percent_ticks(chart.plot.xaxis[0], chart.plot.yaxis[0])

    def text(value: float) -> str:
        return number(value) if regression else percent(value, 1)

    chart.line([0, x.max()], [0, x.max()], "muted", dash="dashed", key="actual = predicted")
    chart.band(x, low, high, "blue", alpha=1.0, width=1.5)
    texts = {
        "predicted": [text(value) for value in x],
        "actual": [text(value) for value in mean],
        "two standard errors": [f"{text(a)} to {text(b)}" for a, b in zip(low, high, strict=True)],
        "rows": [count(len(group)) for group in groups],
    }
    chart.points(x, mean, "blue", texts, size=9, key=f"groups of about {count(len(groups[0]))} rows")
    chart.table(texts)
    return chart


def epistemic_share(rows: Predicted, error: float | None = None) -> Chart | None:
    """Return a chart of the share of epistemic uncertainty, for rows grouped by total uncertainty.

    Args:
        rows: The rows.
        error: Standard deviation of the logarithm of the epistemic variance's factor, given the rows that members left
            out; ``None`` if it was not calibrated. The page states the range of two such deviations.
    """
    if isinstance(rows, PredictedNumbers):
        total, part, words = rows.std**2, rows.epistemic_std**2, "variance"
    else:
        total, part, words = rows.entropy, rows.mutual_information, "entropy"
    if len(total) < FEW or not np.isfinite(total).all() or not total.sum() > 0:
        return None
    groups = [group for group in equal_groups(total) if total[group].sum() > 0]
    share = np.clip([part[group].sum() / total[group].sum() for group in groups], 0.0, 1.0)
    mean = float(part.sum() / total.sum())
    overall = percent(mean)
    if error:
        overall += f"; {percent(mean * np.exp(-2 * error))} to {percent(min(1.0, mean * np.exp(2 * error)))}"
    place = np.arange(len(groups)) + 1.0
    chart = Chart(
        "epistemic",
        "What more data would reduce",
        f"The solid part of the {words} is uncertainty about the weights (epistemic), which more data would reduce. "
        "The hatched part is noise (aleatoric), which only other inputs could reduce."
        + (" The range is what the rows left out allow." if error else ""),
        "groups of rows, surest to least sure",
        f"share of the {words}",
        x_range=(0.4, len(groups) + 0.6),
        y_range=(0, 1),
    )
    chart.ticks(chart.plot.xaxis[0], place.tolist(), [f"{group:.0f}" for group in place])
    percent_ticks(chart.plot.yaxis[0])
    chart.plot.xgrid[0].visible = False
    texts = {
        "group": [f"{group:.0f}" for group in place],
        "epistemic": [percent(one, 1) for one in share],
        "aleatoric": [percent(1.0 - one, 1) for one in share],
        f"mean {words}": [number(float(total[group].mean())) for group in groups],
    }
    chart.boxes(place - 0.4, place + 0.4, 0.0, share, "blue", texts, alpha=0.75, key=f"epistemic ({overall})")
    chart.boxes(place - 0.4, place + 0.4, share, 1.0, "vermilion", texts, hatched=True, alpha=0.12, key="aleatoric")
    chart.table(texts)
    return chart
