"""The units: one per data set and method, with all splits at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.experiment import Context, Experiment, Report, Unit
from experiments.fawn_multioutput.report import report
from experiments.results import Result

ITERATIONS = {
    "energy": 20_000,
    "naval": 20_000,
    "jura": 20_000,
    "jura-random": 20_000,
    "sarcos": 20_000,
}

SOURCES = {"energy": "uci/energy-2", "naval": "uci/naval-2", "sarcos": "sarcos-test"}
"""Names of the data in the library, if they differ from those of the experiment."""

SPLITS = {"jura": 1, "sarcos": 5}
"""Number of splits of the data sets that have fewer than requested."""

METHODS: dict[str, dict[str, Any]] = {"ropd": {"covariance": False}, "co": {"covariance": True}}

PROTOCOL = {
    "splits": 10,
    "weights": "gaussian",
    "objective": "ropd",
    "hidden": 50,
    "batch_size": 128,
    "lr": 0.01,
    "initial_std": 0.05,
    "noise_sd": 0.3,
    "mc_samples": 1_000,
    "seed": 0,
}


class FawnMultioutput(Experiment):
    """Table 2. Arguments shorten the protocol for tests."""

    name = "fawn-multioutput"
    title = "Several targets together: FAWN with and without their covariance"
    source = "Bayer et al. 2015, Table 2"

    def __init__(self, datasets: Sequence[str] = tuple(ITERATIONS), **own: Any) -> None:
        self._datasets, self._own = tuple(datasets), own

    def units(self) -> list[Unit]:
        """Return one unit per data set and method."""
        found = []
        for dataset in self._datasets:
            protocol = {**PROTOCOL, "iterations": ITERATIONS[dataset], **self._own}
            splits = min(protocol["splits"], SPLITS.get(dataset, protocol["splits"]))
            for method, own in METHODS.items():
                config = {"dataset": dataset, "method": method, **protocol, **own, "splits": splits}
                found.append(Unit(f"{method}-{dataset}", config, ITERATIONS[dataset] / 20_000))
        return found

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Fit the networks for all splits, and return their scores."""
        from experiments.fawn.scores import scores
        from experiments.fawn.training import fit
        from experiments.fawn_multioutput.covariance import together
        from experiments.fawn_multioutput.data import parts

        config = unit.config
        divided = parts(SOURCES.get(config["dataset"], config["dataset"]), config["splits"])
        began = time.perf_counter()
        seeds = [config["seed"] + split for split in range(len(divided))]
        found, curves = fit(divided, seeds, config, context.progress)
        seconds = time.perf_counter() - began
        return {
            "splits": [
                {**scores(fitted, part, config), **together(fitted, part)}
                for fitted, part in zip(found, divided, strict=True)
            ],
            "training_loss": curves,
            "seconds_per_network": seconds / len(divided),
        }

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return our numbers beside the paper's, and the correlations of Jura's metals."""
        return report(results, self._datasets)


EXPERIMENT = FawnMultioutput()
