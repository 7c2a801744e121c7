"""The units: one per method and seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.experiment import Context, Experiment, Report, Unit, seed_by_seed
from experiments.results import Result

METHODS: Mapping[str, dict[str, Any]] = {
    "vadam": {"lr": 1e-4, "betas": [0.9, 0.999], "prior_precision": 1e-8, "initial_precision": 1e-8, "floor": 1e4},
    "vadagrad": {"lr": 0.01, "betas": [0.9, 0.99], "initial_precision": 1e4},
    "adam-explore": {"lr": 1e-4, "betas": [0.9, 0.999], "initial_precision": 1e4, "precision_lr": 0.01},
    "adam-plain": {"lr": 1e-4, "betas": [0.9, 0.999]},
    "sgd-explore": {"lr": 1e-4, "initial_precision": 1e4, "precision_lr": 0.01},
    "sgd-plain": {"lr": 1e-4},
}
"""Settings of Khan et al. 2018, Table 3, with those that only their code has."""

PROTOCOL = {
    "environment": "HalfCheetah-v5",
    "episodes": 151,
    "steps": 1000,
    "every": 10,
    "tests": 20,
    "hidden": [400, 300],
    "batch_size": 64,
    "replay": 1_000_000,
    "discount": 0.99,
    "target_rate": 0.001,
    "critic_lr": 0.001,
}
"""Settings of the authors' code, except for the version of the environment and the number of episodes."""


class HalfCheetah(Experiment):
    """The first episodes of the published trainings. The arguments shorten the protocol for tests."""

    name = "half-cheetah"
    title = "HalfCheetah: exploration by noise in the weights of the actor"
    source = "Khan et al. 2018, Figs. 3 (right), 5 and 6, appendix K"

    def __init__(self, seeds: int = 3, **protocol: Any) -> None:
        self._seeds = seeds
        self._protocol = {**PROTOCOL, **protocol}

    def units(self) -> list[Unit]:
        """Return the units. All methods with the first seed come first, so that a stopped run can be compared."""
        return seed_by_seed("method", METHODS, self._seeds, self._protocol)

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Train one agent, and return its evaluations."""
        from experiments.half_cheetah.training import learn

        return learn(unit.config, context.folder, context.progress)

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return curves beside those of both runs of the authors."""
        from experiments.half_cheetah.report import report

        return report(results)


EXPERIMENT = HalfCheetah()
