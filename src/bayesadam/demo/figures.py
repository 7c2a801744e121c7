"""The demo's figures. Their background is white, whatever the page that shows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesadam.demo import curve, digits, prices
from bayesadam.demo.effort import Part
from bayesadam.files import whole_file
from bayesadam.pruning import PruningCurve

FIGURES = ("prices", "digits", "curve", "weights")
_FLATS = 120


def draw(folder: Path, found: Mapping[str, Part]) -> None:
    """Write the figures into a folder."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({**matplotlib.rcParamsDefault, "axes.spines.top": False, "axes.spines.right": False}):
        drawn = {
            "prices": _prices(found["prices"].shown),
            "digits": _digits(found["digits"].shown),
            "curve": _curve(found["curve"].shown),
            "weights": _weights(found["digits"]),
        }
        for name, figure in drawn.items():
            with whole_file(folder / f"{name}.png") as temporary:
                figure.savefig(temporary, dpi=150, facecolor="white")
            pyplot.close(figure)


def _prices(shown: Mapping[str, Any]) -> Any:
    """Draw the intervals of new flats by size, as differences from the expected price of the flat."""
    from matplotlib import pyplot

    from bayesadam.plots import COLOURS

    new, names = shown["new"], (prices.LINEAR, prices.QUANTILES, prices.OURS)
    figure, row = pyplot.subplots(1, 3, figsize=(11, 4.2), sharex=True, sharey=True, layout="constrained")
    area, truth = new["inputs"][:_FLATS, 0], new["mean"][:_FLATS]
    price = new["price"][:_FLATS] - truth
    by_size = np.argsort(area)
    envelope = prices.NORMAL * new["deviation"][:_FLATS][by_size]
    for axes, name in zip(row, names, strict=True):
        lower, upper = (end[:_FLATS] - truth for end in shown["intervals"][name])
        inside = (lower <= price) & (price <= upper)
        axes.vlines(area, lower, upper, color=COLOURS[0], alpha=0.35, lw=2, label="95% interval")
        for sign in (-1, 1):
            label = "95% in truth" if sign > 0 else None
            axes.plot(area[by_size], sign * envelope, color="black", lw=1.2, ls="--", label=label)
        axes.scatter(area[inside], price[inside], s=9, color="black", zorder=3, label="price, inside")
        axes.scatter(
            area[~inside], price[~inside], s=34, marker="X", color=COLOURS[1], zorder=4, lw=0, label="price, outside"
        )
        axes.set(xlabel="size (square metres)", title=f"{name}: {inside.mean():.0%} inside")
    row[0].set_ylabel("price minus its expectation")
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _digits(shown: Mapping[str, Any]) -> Any:
    """Draw entropies of digits and of other images."""
    from matplotlib import pyplot

    from bayesadam import plots

    figure, row = pyplot.subplots(1, 2, figsize=(9.5, 4), sharey=True, layout="constrained")
    for axes, (name, repetitions) in zip(row, shown["entropy"].items(), strict=True):
        groups = {group: torch.cat([entropy[group] for entropy in repetitions]) for group in repetitions[0]}
        plots.entropy_histogram(axes, groups, classes=10)
        axes.set_title(name)
        axes.label_outer()
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _curve(shown: Mapping[str, Any]) -> Any:
    from matplotlib import pyplot

    from bayesadam import plots

    figure, row = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axes, (name, predicted) in zip(row, shown["predictions"].items(), strict=True):
        plots.regression_band(axes, curve.GRID, predicted, shown["data"])
        axes.plot(curve.GRID, curve.true_curve(curve.GRID), color=plots.COLOURS[1], ls="--", lw=1.5, label="true curve")
        axes.set(title=name, ylim=(-3.5, 3.5))
        axes.label_outer()
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return figure


def _weights(part: Part) -> Any:
    """Draw widths of all weights before and after training, and the accuracy without the weakest weights."""
    from matplotlib import pyplot

    from bayesadam import plots

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    widths = {
        name: torch.cat([variance.flatten() for variance in part.shown[q].variance.values()]).sqrt().numpy()
        for name, q in (("after training", "posterior"), ("at the start", "start"))
    }
    ends = [float(end) for end in np.quantile(np.concatenate(list(widths.values())), [0.0, 1.0])]
    for i, (name, values) in enumerate(widths.items()):
        left.hist(
            values,
            np.geomspace(0.9 * ends[0], 1.1 * ends[1], 60).tolist(),
            weights=np.full(len(values), 100 / len(values)),
            histtype="step",
            color=plots.COLOURS[i],
            ls=("-", "--")[i],
            lw=1.8,
            label=name,
        )
    priors = {row.prior_precision for row in part.shown["report"].rows}
    for i, precision in enumerate(sorted(priors)):
        left.axvline(precision**-0.5, color=plots.GREY, lw=1, ls=":", label=None if i else "priors of the tensors")
    left.set(xscale="log", xlabel="standard deviation of a weight", ylabel="% of the weights")
    left.set_xticks([0.01, 0.02, 0.05, 0.1, 0.2, 0.5], ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5"])
    left.minorticks_off()
    left.set(xlim=(0.8 * ends[0], 1.2 * ends[1]), title="Widths (digits, IVON)")
    left.legend(frameon=False, loc="upper center")
    levels = part.numbers["pruned"].values()
    curves = {
        name: PruningCurve(list(digits.PRUNED), [], {"accuracy": [rows[name]["accuracy"] for rows in levels]})
        for name in (digits.SIGNAL_TO_NOISE, digits.MAGNITUDE)
    }
    plots.pruning(right, curves)
    right.set_title("IVON's mean without its weakest weights")
    right.legend(frameon=False)
    return figure
