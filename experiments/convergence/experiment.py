"""The units: one per method, minibatch size and number of samples, each with all seeds at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.convergence.report import report
from experiments.experiment import Context, Experiment, Report, Unit
from experiments.results import Result

SETTINGS = ((1, 1), (1, 16), (128, 16))
"""Minibatch sizes and numbers of samples per step."""

METHODS: dict[str, dict[str, Any]] = {
    "bbb": {"lr": 0.001, "betas": [0.9, 0.999]},
    "vadam": {"lr": 0.001, "betas": [0.9, 0.999]},
    "vogn": {"lr": 0.001, "betas": [0.0, 0.999]},
}
"""Settings of the methods, by the engine's names. VOGN has no momentum."""

PROTOCOL = {
    "dataset": "libsvm/australian",
    "hidden": 64,
    "iterations": 5000,
    "every": 10,
    "window": 100,
    "evaluation_samples": 10,
    "prior_precision": 1.0,
    "initial_precision": 1.0,
    "seeds": 10,
}


class Convergence(Experiment):
    """The three panels. Arguments shorten the protocol for tests."""

    name = "convergence"
    title = "Convergence on Australian credit"
    source = "Khan et al. 2018, Fig. 3, left three panels"

    def __init__(self, settings: Sequence[tuple[int, int]] = SETTINGS, **protocol: Any) -> None:
        self._settings = tuple(settings)
        self._protocol = {**PROTOCOL, **protocol}

    def units(self) -> list[Unit]:
        """Return one unit per method, minibatch size and number of samples."""
        return [
            Unit(
                f"{method}-m{size}-s{samples}",
                {**self._protocol, "method": method, **own, "batch_size": size, "mc_samples": samples},
                1.0 + size * samples / 500.0,
            )
            for size, samples in self._settings
            for method, own in METHODS.items()
        ]

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Train all seeds, test them every few iterations, and return a summary of the losses."""
        from experiments.convergence.protocol import losses, summary

        return summary(losses(unit.config, context.progress), unit.config)

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return curves beside those of the paper."""
        return report(results, self._settings)


EXPERIMENT = Convergence()
