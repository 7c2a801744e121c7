"""Bayer et al. 2015, Table 2: several targets together, with and without their covariance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import bayesadam as ba
from experiments.data import load
from experiments.fawn import Fitted, fit, predictive, scores
from experiments.framework import Context, Report, Unit
from experiments.tables import Number, frame, published
from experiments.uci import Part, splits

TITLE = "Several targets together: FAWN with and without their covariance"
SOURCE = "Bayer et al. 2015, Table 2"

DATASETS = {
    "energy": ("uci/energy-2", 10, "Energy(2 outputs)"),
    "naval": ("uci/naval-2", 10, "Naval(2 outputs)"),
    "jura": ("jura", 1, "Jura(7 outputs)"),
    "jura-random": ("jura-random", 10, "Jura(7 outputs)"),
    "sarcos": ("sarcos-test", 5, "Sarcos(7 outputs)"),
}
"""Name of the data, number of splits, and name in the paper."""
METHODS = {"ropd": ("FAWN-ROPD", False), "co": ("Co-FAWN", True)}
"""Name in the paper, and whether the outputs have a full covariance."""
PROTOCOL = {
    "weights": "gaussian",
    "objective": "ropd",
    "hidden": 50,
    "batch_size": 128,
    "lr": 0.01,
    "initial_std": 0.05,
    "noise_sd": 0.3,
    "mc_samples": 1_000,
    "seed": 0,
    "iterations": 20_000,
}
PLACES = 2
"""Number of Jura's first features, the coordinates. The other features are codes of land use and rock."""


def units() -> list[Unit]:
    """Return one unit per data set and method, with all splits at once."""
    return [
        Unit(
            f"{method}-{dataset}",
            {"dataset": dataset, "method": method, **PROTOCOL, "covariance": covariance, "splits": count},
        )
        for dataset, (_, count, _) in DATASETS.items()
        for method, (_, covariance) in METHODS.items()
    ]


def parts(dataset: str, count: int) -> list[Part]:
    """Return the first splits. "jura" is Jura's published split; "jura-random" are random 90/10 splits of its rows."""
    if not dataset.startswith("jura"):
        return splits(dataset, count)
    data = load("jura")
    if dataset == "jura":
        return [Part.of((data.x_train[:, :PLACES], data.y_train), (data.x_test[:, :PLACES], data.y_test))]
    found, x, y = [], data.x[:, :PLACES], data.y
    for split in range(count):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(split))
        train, test = order[: round(0.9 * len(order))], order[round(0.9 * len(order)) :]
        found.append(Part.of((x[train], y[train]), (x[test], y[test])))
    return found


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Fit the networks for all splits, and return their scores."""
    config = unit.config
    divided = parts(DATASETS[config["dataset"]][0], config["splits"])
    found, curves = fit(divided, [config["seed"] + split for split in range(len(divided))], config, context.progress)
    return {
        "splits": [
            {**scores(fitted, part, config), **together(fitted, part)}
            for fitted, part in zip(found, divided, strict=True)
        ],
        "training_loss": curves,
    }


def together(fitted: Fitted, part: Part) -> dict[str, Any]:
    """Return the NLL with and without the covariance of the outputs, and what it loses in standardised units."""
    single, full = (predictive(fitted, part, covariance=covariance) for covariance in (False, True))
    return {
        "nll_independent": ba.metrics.nll(single, part.y),
        "nll_together": ba.metrics.nll(full, part.y),
        "log_scale": part.scaler.std.log().sum(),
    }


def report(results: Mapping[str, Any]) -> Report:
    """Return our numbers beside those of the paper."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    beside, gain, crossed, errors = [], [], [], []
    for dataset, (_, _, paper) in DATASETS.items():
        both: list[Any] = [dataset]
        row: list[Any] = [dataset]
        for method, (name, _) in METHODS.items():
            result = results[f"{method}-{dataset}"]
            columns = ("nll", "log_scale", "nll_independent", "nll_together", "sampled_nll", "rmse")
            values = {metric: [split[metric] for split in result["splits"]] for metric in columns}
            scaled = Number.less(values["nll"], values["log_scale"], decimals=3, sd=True)
            theirs, error = numbers[paper, name, "test_NLL_joint_over_outputs"], Number.of(values["nll"]).error
            ours = Number.of(values["nll"], decimals=3, sd=True)
            cells = [ours, scaled, Number(error, None, 3), Number(theirs.mean, theirs.error, 3)]
            beside.append([dataset, name, len(values["nll"]), *cells])
            both += [Number.of(values[metric], decimals=3, sd=True) for metric in ("nll_independent", "nll_together")]
            change = Number.less(values["sampled_nll"], values["nll_together"], decimals=3, sd=True)
            row += [Number.of(values["rmse"], sd=True), change]
        crossed.append(both)
        errors.append(row)
        co, ropd = ([split["nll"] for split in results[f"{method}-{dataset}"]["splits"]] for method in ("co", "ropd"))
        change, count = Number.less(co, ropd, decimals=3), sum(a < b for a, b in zip(co, ropd, strict=True))
        means = [numbers[paper, name, "test_NLL_joint_over_outputs"].mean or 0.0 for name, _ in METHODS.values()]
        gain.append([dataset, change, f"{count} of {len(co)}", Number(means[1] - means[0], None, 3)])
    header = ["data", "method", "splits", "ours", "ours, standardised", "standard error", "paper"]
    names = [name for name, _ in METHODS.values()]
    pairs = [f"{name}, {kind}" for name in names for kind in ("independent", "covariance")]
    last = [each for name in names for each in (f"{name}: RMSE", "sampled less propagated NLL")]
    tables = {
        "Test NLL per point, of all targets together, in nats ± sd over splits": frame(header, beside),
        "Co-FAWN less FAWN-ROPD, pair by pair: NLL ± standard error (negative: the covariance helps)": frame(
            ["data", "ours", "splits where better", "paper"], gain
        ),
        "The same networks scored with and without the covariance of their outputs: NLL ± sd": frame(
            ["data", *pairs], crossed
        ),
        "RMSE over all targets; a mixture over 1,000 samples of the first layer less the full Gaussian": frame(
            ["data", *last], errors
        ),
    }
    return Report(tables)
