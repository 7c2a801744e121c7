"""The units: one per method, with the search for its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.experiment import Context, Experiment, Report, Unit
from experiments.landscape.report import report
from experiments.results import Result

PROTOCOL = {
    "steps": 2000,
    "starts": 200,
    "tuning_sets": [100, 101, 102, 103, 104],
    "test_sets": list(range(10)),
    "lr": [0.001, 0.003, 0.01, 0.03, 0.1],
    "path_every": 5,
}
VARIATIONAL = {"num_data": [1.0, 10.0, 100.0], "prior_precision": 1.0, "initial_sd": 0.3}

METHODS: dict[str, dict[str, Any]] = {
    "gradient-descent": {},
    "adam": {},
    "vadam": VARIATIONAL,
    "vadagrad": VARIATIONAL,
    "annealed": VARIATIONAL,
}


class Landscape(Experiment):
    """Five methods from the same starts. Arguments shorten the protocol for tests."""

    name = "landscape"
    title = "Flat minima by variational optimisation"
    source = "Khan et al. 2018, Fig. 7"

    def __init__(self, **protocol: Any) -> None:
        self._protocol = {**PROTOCOL, **protocol}

    def units(self) -> list[Unit]:
        """Return one unit per method."""
        return [
            Unit(name, {**self._protocol, "method": name, **own}, float(len(own.get("num_data", [1]))))
            for name, own in METHODS.items()
        ]

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Search for a learning rate, and descend with it from all starts."""
        from experiments.landscape.protocol import search

        return search(unit.config, context.progress)

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return tables of the shares and the settings, and a figure of paths and ends."""
        return report(results)


EXPERIMENT = Landscape()
