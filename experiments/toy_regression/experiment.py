"""Units: one per panel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.experiment import Context, Experiment, Report, Unit
from experiments.results import Result
from experiments.toy_regression.report import report

PROTOCOL = {"seed": 0, "hidden": 50, "batch_size": 128, "steps": 40_000}

METHODS: dict[str, dict[str, Any]] = {
    "gp": {"restarts": 3},
    "badam": {"lr": 0.001, "l2": 1e-4, "num_data": [20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000]},
    "mc-dropout": {"lr": 0.001, "l2": 1e-4, "dropout": 0.05},
    "bbb": {"lr": 0.001, "prior_precision": 1.0, "initial_std": 0.02},
    "vadam": {"lr": 0.001, "prior_precision": 1.0, "initial_precision": 2500.0},
}


class ToyRegression(Experiment):
    """Five panels. Arguments shorten the protocol for tests."""

    name = "toy-regression"
    title = "Regression with a gap on both sides"
    source = "Kessler et al. 2018, Fig. 1"

    def __init__(self, **protocol: Any) -> None:
        self._protocol = {**PROTOCOL, **protocol}

    def units(self) -> list[Unit]:
        """See the module."""
        return [
            Unit(name, {**self._protocol, "method": name, **own}, 0.1 if name == "gp" else 1.0)
            for name, own in METHODS.items()
        ]

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Fit, and predict on the grid."""
        from experiments.toy_regression.protocol import METHODS as FITS
        from experiments.toy_regression.protocol import Problem, panel

        problem = Problem.draw(unit.config["seed"])
        return panel(problem, *FITS[unit.config["method"]](problem, unit.config, context.progress))

    def report(self, results: Mapping[str, Result]) -> Report:
        """Five panels and a table."""
        return report(results)


EXPERIMENT = ToyRegression()
