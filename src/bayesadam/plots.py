"""Figures. Every function draws into a matplotlib axis and returns it; the colours are safe for colour-blind
readers.

These are figures that users place beside others and save in any format. The page that ``bayesadam report`` writes
shares their colours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesadam import metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bayesadam.predictive import RegressionPredictive
    from bayesadam.pruning import PruningCurve

__all__ = ["entropy_histogram", "pruning", "regression_band", "reliability"]

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY_BLUE = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY_BLUE)
"""The palette of Okabe and Ito."""
GREY = "#555555"
"""The colour of reference lines."""
_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_REMOVED = (0, 50, 80, 90, 95, 98, 99, 99.5, 99.9, 99.95, 99.99)
_SCORES = {"rmse": "RMSE", "nll": "negative log-likelihood (nats)"}


def regression_band(axes: Axes, x: Tensor, prediction: RegressionPredictive, data: tuple[Tensor, Tensor]) -> Axes:
    """Plot the predictive mean over a 1-D input, with two standard deviations of epistemic and of total uncertainty.

    Args:
        axes: Axes to draw into.
        x: Increasing inputs, ``(N,)``.
        prediction: Prediction at those inputs, ``(N,)`` or ``(N, 1)``.
        data: Training inputs and targets.
    """
    mean, epistemic, total = (
        t.flatten().numpy() for t in (prediction.mean, prediction.epistemic.sqrt(), prediction.variance.sqrt())
    )
    grid = x.numpy()
    axes.fill_between(grid, mean - 2 * total, mean + 2 * total, color=COLOURS[0], alpha=0.15, lw=0, label="total, 2 sd")
    axes.fill_between(
        grid, mean - 2 * epistemic, mean + 2 * epistemic, color=COLOURS[0], alpha=0.35, lw=0, label="epistemic, 2 sd"
    )
    axes.plot(grid, mean, color=COLOURS[0], lw=2, label="mean")
    axes.scatter(data[0].numpy(), data[1].numpy(), s=10, color="black", zorder=3, label="training data")
    axes.set(xlabel="x", ylabel="y")
    return axes


def reliability(axes: Axes, predictions: Mapping[str, tuple[Tensor, Tensor]], *, bins: int = 10) -> Axes:
    """Plot accuracy against confidence for several methods; larger markers stand for bins with more data.

    Args:
        axes: Axes to draw into.
        predictions: Class probabilities and targets by name of the method.
        bins: Number of bins of equal width over the confidence.
    """
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":", label="perfectly calibrated")
    for i, (name, (probs, target)) in enumerate(predictions.items()):
        confidence, correct, share = metrics.calibration_curve(probs, target, bins=bins)
        error = metrics.expected_calibration_error(probs, target, bins=bins)
        axes.scatter(
            confidence,
            correct,
            s=30 + 400 * share.sqrt(),
            marker=_MARKERS[i % len(_MARKERS)],
            color=COLOURS[i % len(COLOURS)],
            alpha=0.6,
            lw=0,
            label=f"{name} (ECE {error:.3f})",
        )
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.03), ylim=(0, 1.03))
    return axes


def entropy_histogram(axes: Axes, groups: Mapping[str, Tensor], classes: int) -> Axes:
    """Plot densities of the predictive entropy of several groups of data, from 0 to ``log(classes)``."""
    edges = torch.linspace(0, math.log(classes), 31).tolist()
    # A rounded entropy may be above the last edge, beyond which values are not counted.
    inside = {name: entropy.clamp(0.0, edges[-1]) for name, entropy in groups.items()}
    for i, (name, entropy) in enumerate(inside.items()):
        colour = COLOURS[i % len(COLOURS)]
        axes.hist(entropy.numpy(), edges, density=True, color=colour, alpha=0.25)
        axes.hist(
            entropy.numpy(),
            edges,
            density=True,
            histtype="step",
            color=colour,
            lw=1.8,
            ls=_STYLES[i % len(_STYLES)],
            label=name,
        )
    axes.set(xlabel="predictive entropy (nats)", ylabel="density (log)", xlim=(0, edges[-1]), yscale="log")
    return axes


def pruning(axes: Axes, curves: Mapping[str, PruningCurve], *, score: str = "accuracy") -> Axes:
    """Plot a score against the fraction of weights removed, by method.

    The fraction of remaining weights is on a logarithmic axis, so that 90% and 99.9% are far apart. A level without
    remaining weights cannot be shown on it.

    Args:
        axes: Axes to draw into.
        curves: Pruning curves by name of the method.
        score: Name of one of the curves' scores.
    """
    shares = []
    for i, (name, curve) in enumerate(curves.items()):
        levels = sorted(zip(curve.fractions, curve.scores[score], strict=True))
        drawn = [(1.0 - fraction, value) for fraction, value in levels if fraction < 1.0]
        shares += [share for share, _ in drawn]
        axes.plot(
            *zip(*drawn, strict=True),
            color=COLOURS[i % len(COLOURS)],
            ls=_STYLES[i % len(_STYLES)],
            marker=_MARKERS[i % len(_MARKERS)],
            ms=6,
            mec="white",
            mew=0.7,
            lw=1.8,
            label=name,
        )
    least = min(shares)
    ticks = [percent for percent in _REMOVED if 1.0 - percent / 100 >= 0.95 * least]
    axes.set(xscale="log", xlabel="weights removed", ylabel=_SCORES.get(score, score), xlim=(1.1, 0.9 * least))
    axes.set_xticks([1.0 - percent / 100 for percent in ticks], [f"{percent:g}%" for percent in ticks])
    axes.minorticks_off()
    return axes
