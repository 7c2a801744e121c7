"""The units: one network per method and seed, with its pruning curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.experiment import Context, Experiment, Report, Unit
from experiments.mnist_pruning.report import report
from experiments.results import Result

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
COSTS = {"badam": 1.0, "vadam": 1.5, "ivon": 1.5, "bbb": 2.0}


class Pruning(Experiment):
    """Four trainings with six curves. The arguments shorten the protocol for tests."""

    name = "mnist-pruning"
    title = "Pruning a network for MNIST"
    source = "Kessler et al. 2018, Fig. 2"

    def __init__(self, methods: Mapping[str, Mapping[str, Any]] = METHODS, seeds: int = 1, **protocol: Any) -> None:
        self._methods, self._seeds = methods, seeds
        self._protocol = {**PROTOCOL, **protocol}

    def units(self) -> list[Unit]:
        """Return one unit per method and seed."""
        return [
            Unit(f"{name}-{seed}", {**self._protocol, **own, "seed": seed}, COSTS[name])
            for name, own in self._methods.items()
            for seed in range(self._seeds)
        ]

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Train one network, prune it, and return its test scores."""
        from experiments.mnist_pruning.protocol import curves

        return curves(unit.config, context.progress)

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return curves beside the published ones."""
        return report(results)


EXPERIMENT = Pruning()
