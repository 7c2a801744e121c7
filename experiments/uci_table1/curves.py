"""Fig. 4: test RMSE by epoch. Bands are one standard error, and circles the digitised curves of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.results import Result
from experiments.tables import Published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

LINES = {
    "vadam": ("Vadam", "tab:blue"),
    "vprop": ("Vprop", "tab:orange"),
    "bbvi": ("BBVI", "tab:green"),
    "vogn": ("VOGN", "tab:red"),
    "ivon": ("IVON", "tab:purple"),
    "ropd": ("FAWN-ROPD", "tab:brown"),
}
"""Names and colours of the methods. The first three are in the figure of the paper."""

Numbers = Mapping[tuple[str, str, str], Published]


def curves(results: Mapping[str, Result], datasets: Sequence[str], numbers: Numbers) -> Figure:
    """Plot one panel per data set."""
    from matplotlib.figure import Figure

    columns = min(4, len(datasets))
    lines = math.ceil(len(datasets) / columns)
    figure = Figure(figsize=(3.1 * columns, 2.7 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis in axes[len(datasets) :]:
        axis.remove()
    for axis, dataset in zip(axes, datasets, strict=False):
        _panel(axis, results, dataset, numbers)
    for axis in axes[-columns:]:
        axis.set_xlabel("epoch")
    for axis in axes[::columns]:
        axis.set_ylabel("test RMSE")
    shown = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), fontsize=8, ncols=5, loc="outside upper center", frameon=False)
    return figure


def _numbers(curve: Sequence[float | None]) -> NDArray[np.float64]:
    """One number per epoch, NaN where a network's error was not finite, which no line is drawn through."""
    return np.array(curve, dtype=np.float64)


def _panel(axis: Axes, results: Mapping[str, Result], dataset: str, numbers: Numbers) -> None:
    floor, ceiling = math.inf, 0.0
    for method, (name, colour) in LINES.items():
        result = results.get(f"{method}-{dataset}")
        if result is not None:
            mean, error = (_numbers(result.result[key]["rmse"]) for key in ("curves", "curves_standard_error"))
            epochs = range(1, len(mean) + 1)
            axis.plot(epochs, mean, color=colour, label=f"{name}, ours")
            low, high = mean - error, mean + error
            axis.fill_between(epochs, low, high, color=colour, alpha=0.25, linewidth=0)
            floor = min(floor, *low[np.isfinite(low)])
            later = high[min(2, len(high) - 1) :]
            ceiling = max(ceiling, *later[np.isfinite(later)][:1])
        points = sorted(
            (float(metric.partition("@epoch")[2]), number.value.mean)
            for (data, by, metric), number in numbers.items()
            if data == dataset and by == name and metric.startswith("test_RMSE@epoch")
        )
        if points:
            axis.plot(*zip(*points, strict=True), "o", color=colour, label=f"{name}, paper", markersize=3, mfc="none")
    axis.set_title(dataset)
    if ceiling > 0:
        axis.set_ylim(0.8 * floor, 1.1 * ceiling)
