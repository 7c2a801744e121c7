"""The units: one per kind of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.experiment import Context, Experiment, Report, Unit
from experiments.fawn_histogram.report import report
from experiments.results import Result

WEIGHTS = ("bernoulli", "gaussian")

PROTOCOL = {
    "dataset": "boston",
    "split": 0,
    "iterations": 20_000,
    "objective": "ropd",
    "hidden": 50,
    "batch_size": 128,
    "lr": 0.01,
    "initial_std": 0.05,
    "noise_sd": 0.3,
    "samples": 20_000,
    "shown": 6,
    "bins": 60,
    "seed": 0,
}


class FawnHistogram(Experiment):
    """Two networks on one split. Arguments shorten the protocol for tests."""

    name = "fawn-histogram"
    title = "Outputs of sampled networks against the propagated Gaussian"
    source = "Bayer et al. 2015, section 3.2.1"

    def __init__(self, **own: Any) -> None:
        self._protocol = {**PROTOCOL, **own}

    def units(self) -> list[Unit]:
        """Return one unit per kind of weights."""
        return [Unit(weights, {**self._protocol, "weights": weights}) for weights in WEIGHTS]

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Train a network, sample its outputs, and compare them with the propagated Gaussian."""
        from experiments.fawn.training import fit
        from experiments.fawn_histogram.comparison import compare
        from experiments.uci_table1.protocol import splits

        config = unit.config
        part = splits(config["dataset"], config["split"] + 1)[-1]
        (fitted,), _ = fit([part], [config["seed"]], config, context.progress)
        return compare(fitted, part, config)

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return histograms and tables."""
        return report(results)


EXPERIMENT = FawnHistogram()
