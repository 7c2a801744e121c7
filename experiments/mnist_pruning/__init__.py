"""Kessler et al. 2018, Fig. 2: the accuracy of a network after pruning its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

import bayesadam as ba
from experiments.data import load
from experiments.framework import Context, Report, Unit
from experiments.mnist import LIKELIHOOD, Trained, train
from experiments.plots import panels
from experiments.tables import Number, frame, published

TITLE = "Pruning a network for MNIST"
SOURCE = "Kessler et al. 2018, Fig. 2"

PROTOCOL = {"epochs": 20, "batch_size": 128, "hidden": 400, "mc_samples": 16, "train": 60_000}
METHODS: dict[str, dict[str, Any]] = {
    "badam": {
        "method": "adam",
        "dropout": 0.2,
        "options": {"lr": 0.001, "betas": [0.9, 0.99999]},
        "curves": ["badam", "magnitude", "mc-dropout"],
    },
    "vadam": {
        "method": "vadam",
        "options": {"lr": 0.003, "betas": [0.9, 0.999], "prior_precision": 1.0},
        "curves": ["posterior"],
    },
    "ivon": {
        "method": "ivon",
        "options": {"lr": 1.0, "betas": [0.9, 0.99995], "prior_precision": 10.0, "initial_precision": 5000.0},
        "curves": ["posterior"],
    },
    "bbb": {
        "method": "bbb",
        "options": {"lr": 0.001, "prior": ["Gaussian", 100.0], "initial_std": 0.02},
        "curves": ["posterior"],
    },
}
PROBES: dict[str, dict[str, Any]] = {
    "bbb-wide": {**METHODS["bbb"], "options": {**METHODS["bbb"]["options"], "prior": ["Gaussian", 1.0]}},
    "vadam-cold": {
        **METHODS["vadam"],
        "options": {
            "lr": 0.003,
            "betas": [0.9, 0.999],
            "temperature": 1 / 128,
            "prior_precision": 128.0,
            "initial_precision": 128.0 * 60_000,
        },
    },
}
"""A prior of deviation 1, as in `mnist-bbb`; and Vadam, with the same prior per data point, but 1/128 of the variance:
squared gradients of minibatches of 128 are so much smaller than those of data points, if these are independent.
"""
CHOICES: dict[str, dict[str, Any]] = {
    "badam-beta2": {"betas": [0.9, 0.999]},
    "badam-l2": {"weight_decay": 1e-4},
}
"""Second values of what the paper chose for Badam (appendix D.2): its second beta, and no L2 regularisation."""
CURVES = {
    "bbb/posterior": ("BBB", "#CC79A7", "s-"),
    "bbb-wide/posterior": ("BBB, prior deviation 1", "#882255", "s--"),
    "ivon/posterior": ("IVON", "#009E73", "o-"),
    "vadam/posterior": ("Vadam", "#56B4E9", "^-"),
    "vadam-cold/posterior": ("Vadam, 1/128 of the variance", "#332288", "^--"),
    "badam/badam": ("Badam", "#0072B2", "D-"),
    "badam-beta2/badam": ("Badam, beta2 = 0.999", "#0072B2", "<--"),
    "badam-l2/badam": ("Badam, L2 regularisation", "#0072B2", ">--"),
    "badam/magnitude": ("magnitude", "#000000", "x-"),
    "badam/mc-dropout": ("MC dropout, magnitude", "#E69F00", "P-"),
}
"""Label, colour and line style, by unit and curve."""
PUBLISHED = {"Badam SNR": ("Badam, published", "#0072B2", "D:"), "magnitude": ("magnitude, published", "0.4", "x:")}
LONG, LONG_EPOCHS, LONG_SEEDS = "100-epochs-", 100, 3
"""Beginning of the keys, length and number of seeds of the optional units, which have the published length."""
SHOWN = (0.0, 0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)


def units() -> list[Unit]:
    """Return one network per method and probe, with its pruning curves; and the optional long trainings."""
    methods = METHODS | PROBES
    found = [Unit(f"{name}-0", {**PROTOCOL, **own, "seed": 0}) for name, own in methods.items()]
    for name, options in CHOICES.items():
        own = {**METHODS["badam"], "options": {**METHODS["badam"]["options"], **options}, "curves": ["badam"]}
        found.append(Unit(f"{name}-0", {**PROTOCOL, **own, "seed": 0}, optional=True))
    for seed, (name, own) in product(range(LONG_SEEDS), methods.items()):
        if seed == 0 or name in METHODS:
            config = {**PROTOCOL, **own, "epochs": LONG_EPOCHS, "seed": seed}
            found.append(Unit(f"{LONG}{name}-{seed}", config, optional=True))
    return found


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Return test scores of the mean network at every level of pruning, by the ranking of the weights."""
    config, data = unit.config, load("mnist")
    trained = train(config, data.x_train[: config["train"]], data.y_train[: config["train"]], context)
    found = {}
    for name in config["curves"]:
        curve = prune(name, trained, config, data.x_test, data.y_test)
        found[name] = {"fractions": curve.fractions, **curve.scores}
    return {"curves": found}


def prune(name: str, trained: Trained, config: Mapping[str, Any], x: Tensor, y: Tensor) -> ba.pruning.PruningCurve:
    """Return the curve of one ranking. MC dropout is pruned by magnitude, and averages over dropout masks."""
    model = trained.model
    options: dict[str, Any] = {"likelihood": LIKELIHOOD, "progress": False}
    if name == "posterior":
        assert isinstance(trained.distribution, ba.DiagonalGaussian)
        return ba.pruning_curve(model, trained.distribution, (x, y), **options)
    if name == "badam":
        # Dead pixels have a second moment of 0: without a prior the variance is infinite. The order is the same.
        posterior = ba.badam(trained.optimizer, model, num_data=config["train"], prior_precision=1e-6)
        return ba.pruning_curve(model, posterior, (x, y), **options)
    point = ba.DiagonalGaussian.point_mass(model)
    if name == "magnitude":
        return ba.pruning_curve(model, point, (x, y), by="magnitude", **options)
    predict = partial(ba.predict, model, ba.MCDropout(model), x, mc_samples=config["mc_samples"], **options)

    def evaluate(pruned: ba.posterior.NetworkDistribution) -> Mapping[str, float]:
        with pruned.applied(model):
            found = predict()
        assert isinstance(found, ba.predictive.ClassificationPredictive)
        return {"accuracy": ba.metrics.accuracy(found.probs, y), "nll": ba.metrics.nll(found, y)}

    return ba.pruning_curve(model, point, evaluate=evaluate, by="magnitude", progress=False)


def report(results: Mapping[str, Any]) -> Report:
    """Return curves beside the published ones."""
    theirs: dict[str, dict[float, float]] = {}
    for (_, name, metric), number in published(Path(__file__).with_name("paper.csv")).items():
        if number.mean is not None:
            theirs.setdefault(name, {})[float(metric.partition("@removed")[2])] = number.mean
    tables, figures = {}, {}
    for start, epochs, figure in (("", PROTOCOL["epochs"], "curves"), (LONG, LONG_EPOCHS, "long")):
        if ours := _curves(results, start):
            title = f"Test accuracy after {epochs} epochs, mean and standard error over the seeds"
            tables[title], figures[figure] = _table(ours, theirs), _figure(ours, theirs)
    return Report(tables, figures)


def _curves(results: Mapping[str, Any], start: str) -> dict[str, list[dict[float, float]]]:
    """Return the curves of the units whose keys have this beginning and then the name of a method."""
    found: dict[str, list[dict[float, float]]] = {}
    for key, result in results.items():
        method = key.removeprefix(start).rpartition("-")[0]
        if key.startswith(start) and method in METHODS | PROBES | CHOICES:
            for name, curve in result["curves"].items():
                values = dict(zip(curve["fractions"], curve["accuracy"], strict=True))
                found.setdefault(f"{method}/{name}", []).append(values)
    return found


def _table(ours: Mapping[str, list[dict[float, float]]], theirs: Mapping[str, dict[float, float]]) -> pd.DataFrame:
    rows = [
        [CURVES[key][0], len(ours[key]), *(Number.of([run[share] for run in ours[key]], decimals=3) for share in SHOWN)]
        for key in CURVES
        if key in ours
    ]
    for name, (label, _, _) in PUBLISHED.items():
        rows.append([label, 1, *(Number(theirs[name].get(share), None, 3) for share in SHOWN)])
    return frame(["pruned by", "seeds", *(f"{share:.0%} gone" for share in SHOWN)], rows)


def _figure(ours: Mapping[str, list[dict[float, float]]], theirs: Mapping[str, dict[float, float]]) -> Figure:
    """Plot the share of remaining weights on a logarithmic axis, as the curves differ mainly in the last tenth."""
    figure, axes = panels(1, 1, 9, 5)
    axis = axes[0, 0]
    lines = {CURVES[key]: {s: fmean(run[s] for run in runs) for s in runs[0]} for key, runs in ours.items()}
    lines = {style: lines[style] for style in CURVES.values() if style in lines}
    lines |= {style: theirs[name] for name, style in PUBLISHED.items()}
    for (label, colour, style), curve in lines.items():
        shares, dotted = sorted(curve), style.endswith(":")
        options = {"mfc": "white", "lw": 1.2} if dotted else {"lw": 1.6}
        left, means = [1 - share for share in shares], [curve[share] for share in shares]
        axis.plot(left, means, style, color=colour, label=label, markersize=5, **options)
    axis.set(xscale="log", xlim=(1.1, 0.0009), ylim=(0.0, 1.0))
    axis.set_xticks([1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001])
    axis.xaxis.set_major_formatter(lambda left, _: f"{100 * (1 - left):.{max(0, -math.floor(math.log10(left)) - 2)}f}%")
    axis.minorticks_off()
    axis.set(xlabel="share of weights that are gone", ylabel="test accuracy")
    axis.axhline(0.1, color="0.7", lw=0.8, ls="--")
    axis.legend(frameon=False, loc="lower left", fontsize=9)
    return figure
