"""The units: one per kind of exploration and seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.experiment import Context, Experiment, Report, Unit, seed_by_seed
from experiments.results import Result

EXPLORATIONS: Mapping[str, dict[str, Any]] = {
    "weights-wide": {"num_data": 1e8, "prior_precision": 400.0, "initial_precision": 400.0},
    "weights-narrow": {"num_data": 1e8, "prior_precision": 1e4, "initial_precision": 1e4},
    "action-noise": {"sigma": 0.1},
    "none": {},
}
"""The kinds of exploration: Vadam's noise in the weights with a standard deviation of at most 0.05, or 0.01 as in Khan
et al. 2018, which is smaller where gradients have been large; Gaussian noise in the actions, which are in [-1, 1]; and
none.
"""

PROTOCOL = {
    "environment": "Pendulum-v1",
    "steps": 5000,
    "every": 1000,
    "tests": 10,
    "hidden": [64, 64],
    "learning_rate": 0.001,
    "learning_starts": 200,
}


class Pendulum(Experiment):
    """The experiment on Pendulum. The arguments shorten the protocol for tests."""

    name = "sb3-pendulum"
    title = "Noise in the weights in unmodified stable-baselines3: DDPG on Pendulum"
    source = "The exploration of Khan et al. 2018, appendix K, in another library; no published numbers"

    def __init__(self, seeds: int = 3, **protocol: Any) -> None:
        self._seeds = seeds
        self._protocol = {**PROTOCOL, **protocol}

    def units(self) -> list[Unit]:
        """Return the units. All kinds of exploration with the first seed come first."""
        return seed_by_seed("exploration", EXPLORATIONS, self._seeds, self._protocol)

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Train one agent, and return its evaluations."""
        from experiments.sb3_pendulum.training import learn

        return learn(unit.config, context.progress)

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return tables and a figure of the returns by the number of steps."""
        from experiments.sb3_pendulum.report import report

        return report(results)


EXPERIMENT = Pendulum()
