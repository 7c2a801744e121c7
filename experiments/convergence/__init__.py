"""Khan et al. 2018, Fig. 3: how fast the methods learn, a small network on Australian credit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import nn

import bayesadam as ba
from bayesadam import population
from experiments.data import load
from experiments.framework import Context, Report, Told, Unit, pick
from experiments.logistic_regression.pages import COLOURS
from experiments.plots import panels
from experiments.tables import Number, frame, published

TITLE = "Convergence on Australian credit"
SOURCE = "Khan et al. 2018, Fig. 3, left three panels"

Array = NDArray[np.float64]

SETTINGS = ((1, 1), (1, 16), (128, 16))
"""Minibatch sizes and numbers of samples per step."""

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "bbb": ("BBVI", {"lr": 0.001, "betas": [0.9, 0.999]}),
    "vadam": ("Vadam", {"lr": 0.001, "betas": [0.9, 0.999]}),
    "vogn": ("VOGN", {"lr": 0.001, "betas": [0.0, 0.999]}),
}
"""Name in the paper and settings of the methods, by the engine's names. VOGN has no momentum."""

PROTOCOL: dict[str, Any] = {
    "dataset": "libsvm/australian",
    "hidden": 64,
    "iterations": 5000,
    "every": 10,
    "window": 100,
    "evaluation_samples": 10,
    "prior_precision": 1.0,
    "initial_precision": 1.0,
    "seeds": 10,
}


def units() -> list[Unit]:
    """Return one unit per method, minibatch size and number of samples, each with all seeds at once."""
    return [
        Unit(
            f"{method}-m{size}-s{samples}",
            {**PROTOCOL, "method": method, **own, "batch_size": size, "mc_samples": samples},
        )
        for size, samples in SETTINGS
        for method, (_, own) in METHODS.items()
    ]


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Return median and quantiles over the seeds of every loss, which is smoothed by a running median for each seed.

    One evaluation has few samples and is noisy, most of all the joint loss.
    """
    config = unit.config
    width = max(1, config["window"] // config["every"])
    result: dict[str, Any] = {"window": width * config["every"]}
    for name, values in losses(config, context.progress).items():
        smooth = np.stack([np.median(values[:, max(0, i + 1 - width) : i + 1], axis=1) for i in range(values.shape[1])])
        curves = {
            label: [float(f"{value:.4g}") for value in np.quantile(smooth, level, axis=1)]
            for label, level in (("low", 0.1), ("median", 0.5), ("high", 0.9))
        }
        result[name] = {**curves, "seeds_at_end": [float(f"{value:.4g}") for value in smooth[-1]]}
    return result


def losses(config: Mapping[str, Any], progress: Told) -> dict[str, Array]:
    """Test losses in bits per point, ``(seeds, evaluations)``: ``"joint"`` over the test set, and ``"pointwise"``.

    Seed ``r`` uses split ``r`` of the data into halves, and its own initial weights, noise and minibatches.
    """
    seeds, every = range(config["seeds"]), config["every"]
    splits = [load(config["dataset"], split=seed) for seed in seeds]
    inputs = splits[0].x_train.shape[1]
    epochs = config["iterations"] // every
    found = {name: np.full((len(seeds), epochs), np.nan) for name in ("joint", "pointwise")}

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 1))

    def test(epoch: int, members: list[int], nets: population.Population) -> None:
        predictions = nets.predict(
            [splits[member].x_test for member in members], mc_samples=config["evaluation_samples"], seed=epoch
        )
        for member, prediction in zip(members, predictions, strict=True):
            assert isinstance(prediction, ba.predictive.ClassificationPredictive)
            target = splits[member].y_test[:, None]
            found["joint"][member, epoch] = -ba.metrics.joint_log_likelihood(prediction, target) / math.log(2.0)
            found["pointwise"][member, epoch] = ba.metrics.nll(prediction, target) / math.log(2.0)
        progress(epoch + 1, epochs)

    population.train(
        population.initialize(network, seeds=seeds),
        [(split.x_train, split.y_train[:, None]) for split in splits],
        likelihood=ba.Bernoulli(),
        epochs=epochs,
        steps_per_epoch=every,
        seed=list(seeds),
        betas=tuple(config["betas"]),
        **pick(config, "method", "batch_size", "lr", "mc_samples", "prior_precision", "initial_precision"),
        chunk=len(seeds),
        progress=False,
        on_epoch=test,
    )
    return found


def report(results: Mapping[str, Any]) -> Report:
    """Return curves beside those of the paper, and the losses at two iterations."""
    rows = []
    for size, samples in SETTINGS:
        for key, (name, _) in METHODS.items():
            result, theirs = results.get(f"{key}-m{size}-s{samples}"), _paper(size, samples, name)
            row: list[Any] = [f"{size}, {samples}", name]
            for iteration in (1000, 5000):
                joint, pointwise = (
                    Number(result and result[metric]["median"][iteration // PROTOCOL["every"] - 1], None, 2)
                    for metric in ("joint", "pointwise")
                )
                row += [joint, Number(theirs.get(iteration), None, 2), pointwise]
            rows.append(row)
    header = ["M, S", "method", "at 1000: joint", "paper", "pointwise", "at 5000: joint", "paper", "pointwise"]
    title = "Test loss in bits per point: median of the last 100 iterations, median over the seeds"
    return Report({title: frame(header, rows)}, {"curves": _figure(results)})


def _paper(size: int, samples: int, name: str) -> dict[int, float]:
    """Return the published medians of the last 100 evaluations, by iteration."""
    start = "test_log2loss_median_of_last100@iter"
    return {
        int(metric.removeprefix(start)): number.mean
        for (setting, method, metric), number in published(Path(__file__).with_name("paper.csv")).items()
        if (setting, method) == (f"M={size},S={samples}", name) and metric.startswith(start)
        if number.mean is not None
    }


def _figure(results: Mapping[str, Any]) -> Figure:
    """Plot the medians and the 10% to 90% bands of our seeds, and the paper's single runs as dots with circles."""
    figure, axes = panels(1, len(SETTINGS), 11, 3.9, sharey=True)
    ticks = (0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    for axis, (size, samples) in zip(axes[0], SETTINGS, strict=True):
        for key, (name, _) in METHODS.items():
            if f"{key}-m{size}-s{samples}" in results:
                curves, every = results[f"{key}-m{size}-s{samples}"]["joint"], PROTOCOL["every"]
                iterations, band = (
                    range(every, every * len(curves["median"]) + 1, every),
                    (curves["low"], curves["high"]),
                )
                axis.plot(iterations, curves["median"], color=COLOURS[name], linewidth=1.8)
                axis.fill_between(iterations, *band, color=COLOURS[name], alpha=0.2, linewidth=0)
            theirs = sorted(_paper(size, samples, name).items())
            axis.plot(*zip(*theirs, strict=True), "o:", color=COLOURS[name], markersize=4, mfc="white", linewidth=1.2)
        axis.set_title(f"minibatch {size}, {samples} sample{'s' if samples > 1 else ''}", fontsize=10)
        axis.set(xlabel="iteration", xlim=(0, 5100), yscale="log", ylim=(0.4, 6.0))
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
    axes[0, 0].set_ylabel("test loss (bits per point, joint)")
    legend: list[Any] = [Line2D([], [], color=COLOURS[name], linewidth=2, label=name) for name, _ in METHODS.values()]
    legend += [
        Patch(color="0.5", alpha=0.4, label="10 to 90% of our seeds"),
        Line2D([], [], color="0.3", marker="o", linestyle=":", markersize=4, mfc="white", label="paper, one run"),
    ]
    figure.legend(handles=legend, loc="outside upper center", ncols=len(legend), frameon=False, fontsize=9)
    return figure
