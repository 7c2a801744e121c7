"""Khan et al. 2018, Table 1 and Fig. 4: regression on eight UCI data sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import ttest_rel

from bayesadam import population
from experiments.framework import Context, Report, Unit
from experiments.plots import panels
from experiments.tables import Number, frame, published
from experiments.uci import Part, splits
from experiments.uci_table1 import dropout, probes
from experiments.uci_table1.methods import Precisions, fit, folds, scores, tune

TITLE = "Regression on eight UCI data sets"
SOURCE = "Khan et al. 2018, Table 1 and Fig. 4"

SMALL = {"batch_size": 32, "mc_samples": 10}
LARGE = {"batch_size": 128, "mc_samples": 5}
NARROW = {"log_noise": [1.0, 5.0], "log_prior": [-3.0, 4.0]}
WIDE = {"log_noise": [0.0, 5.0], "log_prior": [-4.0, 4.0]}
DATASETS: dict[str, tuple[dict[str, int], dict[str, list[float]]]] = {
    "boston": (SMALL, WIDE),
    "concrete": (SMALL, WIDE),
    "energy": (SMALL, WIDE),
    "kin8nm": (LARGE, WIDE),
    "naval": (LARGE, NARROW),
    "power": (LARGE, NARROW),
    "wine": (LARGE, WIDE),
    "yacht": (SMALL, WIDE),
}
"""Settings and search space of each data set."""
PROTOCOL: dict[str, Any] = {
    "splits": 20,
    "folds": 5,
    "fold_seed": 123,
    "rounds": 30,
    "startup": 5,
    "hidden": 50,
    "epochs": 40,
    "lr": 0.01,
    "betas": [0.9, 0.99],
    "evaluation_samples": 100,
    "seed": 123,
}
BBVI = {"method": "bbb", "initial_precision": 10.0}
"""Settings of BBVI. Standard deviations start at 1/sqrt(10), and there are twice as many samples as for Vadam."""
OURS: dict[str, dict[str, Any]] = {
    "vogn": {"method": "vogn", "lr": 0.1, "initial_hessian": 1.0, "rounds": 10},
    "ivon": {"method": "ivon", "lr": 0.01, "betas": [0.9, 0.999], "initial_hessian": 10.0, "rounds": 10},
    "ropd": {"method": "fawn-ropd", "mc_samples": 0, "initial_std": 0.05, "rounds": 10},
}
"""Methods without a published column. Their settings were chosen on folds of yacht and energy, for all data sets.

With learning rates of 0.02 and more, IVON diverges in the first epoch where the noise precision is large.
"""
DROPOUT = {
    "method": "mc-dropout",
    "epochs": 400,
    "batch_size": 128,
    "lr": 0.001,
    "length_scale": 0.01,
    "rates": list(dropout.RATES),
    "validation_share": 0.2,
    "validation_samples": 500,
    "evaluation_samples": 10_000,
}
"""Settings of Gal's code of 2018, except for a tenth of its epochs, and 500 instead of 10,000 validation samples. Other
units have the 4,000 epochs of his stored results.
"""
LABELS = {
    "vadam": "Vadam",
    "vprop": "Vprop",
    "bbvi": "BBVI",
    "vogn": "VOGN",
    "ivon": "IVON",
    "ropd": "FAWN-ROPD",
    "dropout": "MC dropout",
}
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")

Numbers = Mapping[tuple[str, str, str], Number]


def units() -> list[Unit]:
    """Return one unit per data set and method. Vprop, whose units come last, uses the precisions of Vadam.

    Vadam and BBVI are tuned twice: on the pointwise log-likelihood, and on the joint one, as in the paper.
    """
    found = []
    for dataset, (settings, space) in DATASETS.items():
        config = {"dataset": dataset, **settings, **PROTOCOL}
        vadam = {**config, "method": "vadam", "space": space}
        bbvi = {**vadam, **BBVI, "mc_samples": 2 * settings["mc_samples"]}
        found += [Unit(f"vadam-{dataset}", vadam), Unit(f"vprop-{dataset}", {**config, "method": "vprop"}, phase=1)]
        found.append(Unit(f"bbvi-{dataset}", bbvi))
        for method, own in (("vadam", vadam), ("bbvi", bbvi)):
            joint = {**own, "tuned_on": "joint_log_likelihood"}
            found.append(Unit(f"{method}-joint-{dataset}", joint))
        found += [Unit(f"{method}-{dataset}", {**vadam, **own}) for method, own in OURS.items()]
        common = {name: PROTOCOL[name] for name in ("splits", "hidden", "seed")}
        noise = list(dropout.NOISE_PRECISIONS[dataset])
        gal = {"dataset": dataset, **common, **DROPOUT, "noise_precisions": noise}
        found.append(Unit(f"dropout-{dataset}", gal))
        found.append(Unit(f"4000-epochs-{dataset}", {**gal, "epochs": 4_000}))
    for name, own in probes.PROBES.items():
        config = {**PROTOCOL, **DATASETS[own["dataset"]][0], "folds": 0, **own, "splits": probes.SPLITS}
        found.append(Unit(f"probe-{name}", config))
    return found


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Tune the precisions, or take those of another unit; then train on all training splits, and return scores."""
    config = dict(unit.config)
    if config["method"] == "mc-dropout":
        return dropout.run(config, context)
    if unit.key.startswith("probe-"):
        return probes.run(config, context)
    if config["method"] == "vprop":
        tuned = context.results[f"vadam-{config['dataset']}"]["splits"]
        return _final(
            config, [Precisions(split["log_noise"], split["log_prior"]) for split in tuned], [None] * len(tuned)
        )
    return _final(config, *_tune(config, context))


def _seeds(split: int, fold: int) -> int:
    """Return the seed of weights, noise and order. As all rounds share it, candidates differ only in precisions."""
    return 1000 * split + fold


def _tune(config: dict[str, Any], context: Context) -> tuple[list[Precisions], list[float]]:
    """Return the best precisions of every split by the mean validation score of its folds, and this score."""
    size = config["folds"]
    divided = folds(config["dataset"], config["splits"], size, config["fold_seed"])

    def objective(number: int, candidates: dict[int, Precisions]) -> list[float]:
        context.progress(number, config["rounds"] + 1, f"round {number + 1}")
        parts: list[Part] = [part for split in candidates for part in divided[split]]
        asked = [candidate for candidate in candidates.values() for _ in range(size)]
        seeds = [_seeds(split, 1 + fold) for split in candidates for fold in range(size)]
        found = scores(fit(parts, asked, seeds, config), parts, config)
        values = found[config.get("tuned_on", "log_likelihood")]
        return [sum(values[i : i + size]) / size for i in range(0, len(values), size)]

    names = [f"{config['dataset']}-{split}" for split in range(config["splits"])]
    return tune(objective, names, config, context.folder / "studies.log")


def _final(config: dict[str, Any], best: Sequence[Precisions], cv: Sequence[float | None]) -> dict[str, Any]:
    """Train on the whole training splits, and return test scores after every epoch."""
    parts = splits(f"uci/{config['dataset']}", config["splits"])
    curves: dict[str, list[list[float]]] = {}

    def test(epoch: int, members: list[int], nets: population.Population) -> None:
        found = scores(nets, [parts[member] for member in members], config)
        for metric, values in found.items():
            table = curves.setdefault(metric, [[float("nan")] * len(parts) for _ in range(config["epochs"])])
            for member, value in zip(members, values, strict=True):
                table[epoch][member] = value

    nets = fit(parts, best, [_seeds(split, 0) for split in range(len(parts))], config, test)
    return {
        "splits": [
            {
                "log_noise": precisions.log_noise,
                "log_prior": precisions.log_prior,
                "validation_log_likelihood": value,
                **{metric: table[-1][split] for metric, table in curves.items()},
                "stopped": nets.stopped[split],
            }
            for split, (precisions, value) in enumerate(zip(best, cv, strict=True))
        ],
        "curves": {metric: [sum(row) / len(row) for row in table] for metric, table in curves.items()},
        "curves_standard_error": {metric: [_standard_error(row) for row in table] for metric, table in curves.items()},
    }


def _standard_error(values: Sequence[float]) -> float:
    """Return the population standard deviation divided by the root of the number, as in the authors' code."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values)) / len(values)


def report(results: Mapping[str, Any]) -> Report:
    """Return our numbers beside the paper's, and the learning curves."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    tables = {}
    for method in ("vadam", "vprop", "bbvi"):
        tables[f"{LABELS[method]}: test RMSE"] = _rmse(results, numbers, method)
        if method != "vprop":
            title = f"{LABELS[method]}: test log-likelihood in nats per point, tuned on the"
            tables[f"{title} pointwise one"] = _log_likelihood(results, numbers, method, method)
            tables[f"{title} joint one, as the paper"] = _log_likelihood(results, numbers, method, f"{method}-joint")
    for key, epochs in (("dropout", "400"), ("4000-epochs", "4,000")):
        tables[f"MC dropout, {epochs} epochs, pointwise log-likelihood"] = _dropout(results, numbers, key)
    tables["Boldface of Table 1: is BBVI or Vadam better? Paired t-tests over the 20 splits"] = _tests(results)
    tables[f"Probes over the first {probes.SPLITS} splits, without a search"] = probes.table(results)
    names = {"rmse": "RMSE", "log_likelihood": "pointwise log-likelihood", "joint_log_likelihood": "joint one"}
    for metric, title in names.items():
        rows = [[data, *(values(results.get(f"{by}-{data}"), metric) for by in LABELS)] for data in DATASETS]
        tables[f"All methods side by side: test {title}"] = frame(["data", *LABELS.values()], rows)
    return Report(tables, {"learning-curves": _figure(results, numbers)})


def values(result: Mapping[str, Any] | None, metric: str, decimals: int | None = None) -> Number:
    """Return the mean over the splits, if the method has such a score."""
    found = [split[metric] for split in (result or {"splits": []})["splits"] if split.get(metric) is not None]
    return Number.of(found, ddof=0, decimals=decimals)


def _rmse(results: Mapping[str, Any], numbers: Numbers, method: str) -> pd.DataFrame:
    """Tabulate the RMSE beside Table 1, which has two decimals and no Vprop, and beside the last points of Fig. 4."""
    rows, name = [], LABELS[method]
    for dataset in DATASETS:
        ours, read = values(results[f"{method}-{dataset}"], "rmse"), numbers[dataset, name, "test_RMSE@epoch40"]
        figure = Number(read.mean, read.error)
        theirs = [figure] if method == "vprop" else [_printed(numbers[dataset, name, "test_RMSE"]), figure]
        rows.append([dataset, ours, *theirs, _difference(ours, theirs[0], -1)])
    paper = ["paper, Fig. 4"] if method == "vprop" else ["paper, Table 1", "paper, Fig. 4"]
    return frame(["data", "ours", *paper, "difference"], rows)


def _log_likelihood(results: Mapping[str, Any], numbers: Numbers, method: str, key: str) -> pd.DataFrame:
    rows = []
    for dataset in DATASETS:
        if result := results.get(f"{key}-{dataset}"):
            pointwise, joint = (values(result, metric, 2) for metric in ("log_likelihood", "joint_log_likelihood"))
            theirs = _printed(numbers[dataset, LABELS[method], "test_loglik"])
            read, rmse = numbers[dataset, LABELS[method], "test_RMSE@epoch40"], values(result, "rmse")
            errors = [rmse, Number(read.mean, read.error), _difference(rmse, Number(read.mean, read.error), -1)]
            rows.append([dataset, pointwise, joint, theirs, _difference(joint, theirs, 1), *errors])
    header = ["data", "ours, pointwise", "ours, joint", "paper, joint", "difference"]
    return frame([*header, "RMSE, ours", "paper, Fig. 4", "difference"], rows)


def _tests(results: Mapping[str, Any]) -> pd.DataFrame:
    """Test BBVI against Vadam as the paper does, at the level 0.01: RMSE, and joint log-likelihood tuned on itself."""
    rows = []
    for dataset in DATASETS:
        row: list[Any] = [dataset]
        for metric, sign in (("rmse", -1), ("joint_log_likelihood", 1)):
            found = []
            for method in ("vadam", "bbvi"):
                key = f"{method}-joint-{dataset}" if sign > 0 else ""
                result = results.get(key) or results[f"{method}-{dataset}"]
                found.append([sign * split[metric] for split in result["splits"]])
            better = "Vadam" if sum(found[0]) > sum(found[1]) else "BBVI"
            p = float(ttest_rel(*found).pvalue)
            row += [Number.less(*found, ddof=0), f"{p:.2g}", better if p < 0.01 else "both"]
        rows.append(row)
    names = ["Vadam better by", "p", "bold"]
    return frame(["data", *(f"{metric}: {name}" for metric in ("RMSE", "joint") for name in names)], rows)


def _dropout(results: Mapping[str, Any], numbers: Numbers, key: str) -> pd.DataFrame:
    """Tabulate MC dropout beside Gal's run of the same grid and Table 1 of the paper, which are both pointwise."""
    rows = []
    for dataset in DATASETS:
        if result := results.get(f"{key}-{dataset}"):
            row: list[Any] = [dataset]
            for metric, name, sign in (("rmse", "test_RMSE", -1), ("log_likelihood", "test_loglik", 1)):
                ours, rerun = values(result, metric), numbers[dataset, "MC-Dropout, 4,000 epochs", name]
                theirs, paper = Number(rerun.mean, rerun.error), _printed(numbers[dataset, "MC-Dropout", name])
                row += [ours, theirs, _difference(ours, theirs, sign), paper]
            rows.append(row)
    columns = ["Gal, 4,000 epochs", "difference", "paper"]
    return frame(["data", "RMSE, ours", *columns, "log-likelihood, ours", *columns], rows)


def _printed(number: Number) -> Number:
    """Format a number as in Table 1."""
    return Number(number.mean, number.error, 2)


def _difference(ours: Number, theirs: Number, sign: int) -> Number:
    """Return by how much our number is better, in combined standard errors."""
    rounding = 0.0 if theirs.decimals is None else 10.0**-theirs.decimals / math.sqrt(12)
    error = math.sqrt((ours.error or 0.0) ** 2 + (theirs.error or 0.0) ** 2 + rounding**2)
    return Number(sign * ((ours.mean or 0.0) - (theirs.mean or 0.0)) / error, None, 1)


def _figure(results: Mapping[str, Any], numbers: Numbers) -> Figure:
    """Plot the test RMSE by epoch. Bands are one standard error, and circles the digitised curves of the paper."""
    figure, axes = panels(2, 4, 12.4, 5.4, grid="")
    for axis, dataset in zip(axes.flat, DATASETS, strict=True):
        _panel(axis, results, dataset, numbers)
        axis.set(xlabel="epoch", ylabel="test RMSE")
        axis.label_outer()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=5, loc="outside upper center", frameon=False)
    return figure


def _panel(axis: Axes, results: Mapping[str, Any], dataset: str, numbers: Numbers) -> None:
    floor, ceiling = math.inf, 0.0
    for (method, name), colour in zip(LABELS.items(), COLOURS, strict=False):
        if result := results.get(f"{method}-{dataset}"):
            # A network's error may not be finite: no line is drawn there.
            mean, error = (np.array(result[key]["rmse"], float) for key in ("curves", "curves_standard_error"))
            epochs, low, high = range(1, len(mean) + 1), mean - error, mean + error
            axis.plot(epochs, mean, color=colour, label=f"{name}, ours")
            axis.fill_between(epochs, low, high, color=colour, alpha=0.25, linewidth=0)
            floor, ceiling = min(floor, np.nanmin(low)), max(ceiling, high[2:][np.isfinite(high[2:])][0])
        points = sorted(
            (float(metric.partition("@epoch")[2]), number.mean or math.nan)
            for (data, by, metric), number in numbers.items()
            if (data, by) == (dataset, name) and metric.startswith("test_RMSE@epoch")
        )
        if points:
            axis.plot(*zip(*points, strict=True), "o", color=colour, label=f"{name}, paper", markersize=3, mfc="none")
    axis.set_title(dataset)
    axis.set_ylim(0.8 * floor, 1.1 * ceiling)
