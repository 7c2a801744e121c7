"""The units: one per panel of the figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.experiment import Context, Experiment, Report, Unit
from experiments.results import Result
from experiments.toy_regression.report import report

PROTOCOL = {"seed": 0, "hidden": 50, "batch_size": 128, "steps": 12_000}

METHODS: dict[str, dict[str, Any]] = {
    "gp": {"restarts": 2},
    "badam": {"lr": 0.001, "l2": 1e-4, "num_data": [round(10 ** (k / 2)) for k in range(4, 19)]},
    "mc-dropout": {"lr": 0.003, "l2": 1e-6, "dropout": 0.01},
    "bbb": {"lr": 0.003, "prior_precision": 1.0, "initial_std": 0.02, "noise_sd": 0.065, "temperature": 0.1},
    "vadam": {
        "lr": 0.003,
        "prior_precision": 1.0,
        "initial_precision": 2500.0,
        "noise_sd": 0.065,
        "temperature": 0.1,
    },
    "anchored": {"lr": 0.01, "prior_precision": 1.0, "noise_sd": 0.065, "members": 20},
}
"""Settings of the methods. The last three have a given noise, the standard deviation of the first two's residuals."""


class ToyRegression(Experiment):
    """A figure of six panels. The arguments shorten the protocol for tests."""

    name = "toy-regression"
    title = "Regression with a gap on both sides"
    source = "Kessler et al. 2018, Fig. 1"

    def __init__(self, **protocol: Any) -> None:
        self._protocol = {**PROTOCOL, **protocol}

    def units(self) -> list[Unit]:
        """Return one unit per panel."""
        return [
            Unit(name, {**self._protocol, "method": name, **own}, 0.1 if name == "gp" else 1.0)
            for name, own in METHODS.items()
        ]

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Fit one method, and return its scores and its predictions on the grid."""
        from experiments.toy_regression.protocol import METHODS as FITS
        from experiments.toy_regression.protocol import Problem, panel

        problem = Problem.draw(unit.config["seed"])
        return panel(problem, *FITS[unit.config["method"]](problem, unit.config, context.progress))

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return a figure with six panels, and a table."""
        return report(results)


EXPERIMENT = ToyRegression()
