"""Bayer et al. 2015, Table 1: densities of regression targets on nine UCI data sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.fawn import fit, scores
from experiments.fawn_uci.gp import score
from experiments.framework import Context, Report, Unit
from experiments.tables import Number, frame, grid, published
from experiments.uci import splits, year

TITLE = "Fast adaptive weight noise on nine UCI data sets"
SOURCE = "Bayer et al. 2015, Table 1"

DATASETS = {
    "boston": (10, 20_000, "Boston"),
    "concrete": (10, 20_000, "Concrete"),
    "energy": (10, 20_000, "Energy"),
    "kin8nm": (10, 20_000, "Kin8Nm"),
    "naval": (10, 40_000, "Naval"),
    "power": (10, 20_000, "Power Plant"),
    "protein": (5, 20_000, "Protein"),
    "wine": (10, 20_000, "Wine"),
    "yacht": (10, 20_000, "Yacht"),
    "year": (1, 20_000, "Year"),
}
"""Number of splits, number of iterations, and name in the paper. Protein has only five splits. Year has one; its data
must be downloaded, so that its units are optional.
"""
SHORT = {"iterations": 3_000, "splits": 3}
SHORTER = ("vi", "bern", "bern-inputs")
"""Methods with two fifths of the iterations, to save time."""
METHODS: dict[str, dict[str, Any]] = {
    "vi": {"weights": "gaussian", "objective": "vi"},
    "ropd": {"weights": "gaussian", "objective": "ropd"},
    "bern": {"weights": "bernoulli", "objective": "ropd"},
    "bern-inputs": {"weights": "bernoulli", "objective": "ropd", "scales": "inputs", "drawn_std": 0.2},
}
"""The last method is FAWN-BERN with a scale per input unit instead of output unit, and the paper's initialisation."""
BERN_STARTS: dict[str, dict[str, Any]] = {
    "bern-outputs": {},
    "bern-inputs": {"scales": "inputs"},
    "bern-inputs-drawn": {"scales": "inputs", "drawn_std": 0.2},
}
BERN_PROBE = ("concrete", "energy", "kin8nm", "yacht")
PROBES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    f"{kind}-{objective}": (BERN_PROBE, {"weights": "bernoulli", "objective": objective, **own, **SHORT})
    for kind, own in BERN_STARTS.items()
    for objective in ("vi", "ropd")
}
PROBES |= {
    f"ropd-{steps}": (("wine",), {**METHODS["ropd"], "iterations": steps, "splits": 5})
    for steps in (500, 1_500, 4_000, 10_000)
}
PROBES |= {
    "ropd-wide": (("wine",), {**METHODS["ropd"], "iterations": 10_000, "splits": 5, "initial_std": 0.2}),
    "ropd-slow": (("wine",), {**METHODS["ropd"], "iterations": 10_000, "splits": 5, "lr": 0.003}),
    "ropd-drawn": (("boston", "concrete", "energy", "wine", "yacht"), {**METHODS["ropd"], "drawn_std": 0.2}),
    "vi-long": (("naval",), METHODS["vi"]),
    "ropd-20-splits": (("wine",), {**METHODS["ropd"], "splits": 20}),
    "vi-20-splits": (("wine",), {**METHODS["vi"], "iterations": 8_000, "splits": 20}),
    "bern-inputs-20-splits": (("kin8nm", "wine"), {**METHODS["bern-inputs"], "iterations": 8_000, "splits": 20}),
}
"""Data sets, and settings in place of those of the protocol, of the probes: the choices of FAWN-BERN, which the paper
leaves open, in short trainings; the length and the start of FAWN-ROPD on wine; the paper's start of FAWN-ROPD; FAWN-VI
with the length of FAWN-ROPD; and twice as many splits.
"""
PROBED = tuple(dict.fromkeys(name for names, _ in PROBES.values() for name in names))
PROTOCOL = {
    "hidden": 50,
    "batch_size": 128,
    "lr": 0.01,
    "initial_std": 0.05,
    "noise_sd": 0.3,
    "mc_samples": 1_000,
    "seed": 0,
}
GP = ("boston", "concrete", "energy", "yacht")
"""Data sets for which the paper has a Gaussian process."""
LABELS = {
    "ropd": "FAWN-ROPD",
    "vi": "FAWN-VI",
    "bern": "FAWN-BERN",
    "bern-inputs": "FAWN-BERN, scales of inputs",
    "gp": "GP",
}
FAWN = ("ropd", "vi", "bern", "bern-inputs")


def units() -> list[Unit]:
    """Return one unit per data set and method, with all splits at once."""
    found = []
    for dataset, (count, iterations, _) in DATASETS.items():
        for method, own in METHODS.items():
            steps = iterations * 2 // 5 if method in SHORTER else iterations
            config = {"dataset": dataset, "method": method, **PROTOCOL, "iterations": steps, **own, "splits": count}
            found.append(Unit(f"{method}-{dataset}", config, optional=dataset == "year"))
        if dataset in GP:
            config = {"dataset": dataset, "method": "gp", "splits": count, "restarts": 3, "seed": 0}
            found.append(Unit(f"gp-{dataset}", config))
    for probe, (names, own) in PROBES.items():
        for dataset in names:
            count, iterations, _ = DATASETS[dataset]
            config = {"dataset": dataset, "method": probe, **PROTOCOL, "iterations": iterations, "splits": count, **own}
            found.append(Unit(f"probe-{probe}-{dataset}", config))
    return found


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Fit the models for all splits, and return their scores."""
    config = unit.config
    parts = year() if config["dataset"] == "year" else splits(f"uci/{config['dataset']}", config["splits"])
    if config["method"] == "gp":
        own = []
        for split, part in enumerate(parts):
            context.progress(split, len(parts), f"split {split}")
            own.append(context.memory.cache(score)(part, config["restarts"], config["seed"] + split))
        return {"splits": own}
    found, curves = fit(parts, [config["seed"] + split for split in range(len(parts))], config, context.progress)
    return {
        "splits": [scores(fitted, part, config) for fitted, part in zip(found, parts, strict=True)],
        "training_loss": curves,
    }


def report(results: Mapping[str, Any]) -> Report:
    """Return our numbers beside those of the paper."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    values: dict[tuple[str, str, str], list[float]] = {}
    for key, result in results.items():
        method, _, dataset = key.rpartition("-")
        if method.startswith("probe-"):
            values[dataset, method, "nll"] = [split["nll"] for split in result["splits"]]
            continue
        for metric in result["splits"][0].keys() - {"noise_sd"}:
            values[dataset, method, metric] = [split[metric] for split in result["splits"]]
        if method in FAWN:
            values[dataset, method, "noise_sd"] = [split["noise_sd"][0] for split in result["splits"]]

    def theirs(dataset: str, name: str) -> Number | None:
        return numbers.get((DATASETS[dataset][2], name.partition(",")[0], "test_NLL"))

    def mean(dataset: str, method: str, metric: str, form: str) -> str | None:
        found = values.get((dataset, method, metric))
        return form.format(sum(found) / len(found)) if found else None

    def less(dataset: str, method: str, metric: str, decimals: int | None) -> Number:
        one, other = (values.get((dataset, method, name)) for name in (f"sampled_{metric}", metric))
        return Number.less(one, other, decimals=decimals, sd=True) if one and other else Number(None)

    tables = {}
    for method, name in LABELS.items():
        rows = []
        for dataset in DATASETS:
            own, paper = values.get((dataset, method, "nll")), theirs(dataset, name)
            if own is not None and paper is not None:
                average, gaps = Number.of(own), in_errors(Number.of(own), paper)
                cells = [Number.of(own, decimals=3, sd=True), Number(average.error, None, 3), paper]
                cells += [Number(gap, None, 1) for gap in gaps]
                rows.append([dataset, *cells, None if gaps[0] is None else "yes" if gaps[0] <= 1.0 else "no"])
        header = ["data", "ours ± sd", "standard error", "paper ± sd", "difference", "with both errors", "reached"]
        tables[f"{name}: test NLL in nats per point"] = frame(header, rows)
    copied = grid(DATASETS, {"VI": "VI", "PBP": "PBP"}, theirs)
    tables["From the paper, which copied them: test NLL ± standard error"] = copied
    tables["Test RMSE ± sd"] = grid(DATASETS, LABELS, lambda d, m: Number.of(values.get((d, m, "rmse"), []), sd=True))
    columns = {"noise_sd": "{:.4g}", "sd": "{:.4g}", "epistemic": "{:.0%}"}
    rows = [[d, *(mean(d, m, name, form) for m in FAWN for name, form in columns.items())] for d in DATASETS]
    header = [each for m in FAWN for each in (f"{LABELS[m]}: noise sd", "predictive sd", "of the weights")]
    tables["What the predictive variance is made of; means over the splits"] = frame(["data", *header], rows)
    rows = [[d, *(less(d, m, *one) for m in FAWN for one in (("nll", 3), ("rmse", None)))] for d in DATASETS]
    title = "A mixture over 1,000 samples of the first layer less propagated moments, ± sd over the splits"
    tables[title] = frame(["data", *(each for m in FAWN for each in (f"{LABELS[m]}: NLL", "RMSE"))], rows)
    rows = []
    for probe, (_, changes) in PROBES.items():
        found = [Number.of(values.get((d, f"probe-{probe}", "nll"), []), decimals=3, sd=True) for d in PROBED]
        rows.append([probe, changes.get("iterations"), *found])
    tables["Probes: test NLL ± sd"] = frame(["probe", "minibatches", *PROBED], rows)
    return Report(tables)


def in_errors(ours: Number, theirs: Number, count: int = 10) -> tuple[float, float] | tuple[None, None]:
    """Return ours minus theirs in standard errors of their mean over ``count`` splits, and in those of the difference.

    Args:
        ours: A mean and its standard error.
        theirs: A mean and the standard deviation over the splits.
        count: Number of their splits.
    """
    if ours.mean is None or theirs.mean is None or not theirs.error:
        return None, None
    error, gap = theirs.error / math.sqrt(count), ours.mean - theirs.mean
    return gap / error, gap / math.hypot(error, ours.error or 0.0)
