"""The units: one per data set and method, with all splits at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.experiment import Context, Experiment, Report, Unit
from experiments.fawn_uci.report import report
from experiments.results import Result

ITERATIONS = {
    "boston": 20_000,
    "concrete": 20_000,
    "energy": 20_000,
    "kin8nm": 20_000,
    "naval": 40_000,
    "power": 20_000,
    "protein": 20_000,
    "wine": 20_000,
    "yacht": 20_000,
}

SHORTER = ("vi", "bern", "bern-inputs")
"""Methods with two fifths of the iterations, to save time."""

SPLITS = {"protein": 5}
"""Number of published splits of the data sets that have fewer than requested."""

METHODS: dict[str, dict[str, Any]] = {
    "vi": {"weights": "gaussian", "objective": "vi"},
    "ropd": {"weights": "gaussian", "objective": "ropd"},
    "bern": {"weights": "bernoulli", "objective": "ropd"},
    "bern-inputs": {"weights": "bernoulli", "objective": "ropd", "scales": "inputs", "drawn_std": 0.2},
}
"""The last method is FAWN-BERN with a scale per input unit instead of output unit, and the paper's initialisation."""

PROTOCOL = {
    "splits": 10,
    "hidden": 50,
    "batch_size": 128,
    "lr": 0.01,
    "initial_std": 0.05,
    "noise_sd": 0.3,
    "mc_samples": 1_000,
    "seed": 0,
}

GP = {"boston": 3, "concrete": 3, "energy": 3, "yacht": 3}
"""Numbers of restarts for the data sets for which the paper has a Gaussian process."""


class FawnUCI(Experiment):
    """Table 1. Arguments shorten the protocol for tests."""

    name = "fawn-uci"
    title = "Fast adaptive weight noise on nine UCI data sets"
    source = "Bayer et al. 2015, Table 1"

    def __init__(self, datasets: Sequence[str] = tuple(ITERATIONS), restarts: int | None = None, **own: Any) -> None:
        self._datasets, self._restarts, self._own = tuple(datasets), restarts, own

    def units(self) -> list[Unit]:
        """Return one unit per data set and method."""
        found = []
        for dataset in self._datasets:
            protocol = {**PROTOCOL, "iterations": ITERATIONS[dataset], **self._own}
            splits = min(protocol["splits"], SPLITS.get(dataset, protocol["splits"]))
            for method, own in METHODS.items():
                config = {"dataset": dataset, "method": method, **protocol, **own, "splits": splits}
                if method in SHORTER:
                    config["iterations"] = config["iterations"] * 2 // 5
                found.append(Unit(f"{method}-{dataset}", config, config["iterations"] / 20_000))
            if dataset in GP:
                restarts = GP[dataset] if self._restarts is None else self._restarts
                config = {"dataset": dataset, "method": "gp", "splits": splits, "restarts": restarts, "seed": 0}
                found.append(Unit(f"gp-{dataset}", config, 4.0 if dataset == "concrete" else 1.0))
        return found

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Fit the models for all splits, and return their scores."""
        from experiments.fawn.scores import scores
        from experiments.fawn.training import fit
        from experiments.fawn_uci.gp import gp
        from experiments.uci_table1.protocol import splits

        config = unit.config
        parts = splits(config["dataset"], config["splits"])
        if config["method"] == "gp":
            return {"splits": gp(parts, config, context.progress)}
        began = time.perf_counter()
        found, curves = fit(parts, [config["seed"] + split for split in range(len(parts))], config, context.progress)
        seconds = time.perf_counter() - began
        return {
            "splits": [scores(fitted, part, config) for fitted, part in zip(found, parts, strict=True)],
            "training_loss": curves,
            "seconds_per_network": seconds / len(parts),
        }

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return our numbers beside those of the paper."""
        return report(results, self._datasets)


EXPERIMENT = FawnUCI()
