"""The units: every candidate setting on one validation split, and each method's best setting with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.experiment import Context, Experiment, Report, Unit
from experiments.mnist_bbb.report import report
from experiments.mnist_bbb.settings import CANDIDATES, COSTS, PROTOCOL, SEEDS
from experiments.results import Result


class MNIST(Experiment):
    """All methods have the same epochs and minibatches. The arguments shorten the experiment for tests."""

    name = "mnist-bbb"
    title = "MNIST: errors, calibration, and images that are no digits"
    source = "Blundell et al. 2015, Table 1, with the weight-perturbed optimisers beside it"

    def __init__(
        self, candidates: Mapping[str, Sequence[Mapping[str, Any]]] = CANDIDATES, seeds: int = 2, **protocol: Any
    ) -> None:
        self._candidates, self._seeds = candidates, seeds
        self._protocol = {**PROTOCOL, **protocol}

    def units(self) -> list[Unit]:
        """Return the units; the final units of a method need those of its candidates."""
        found = []
        for name, candidates in self._candidates.items():
            cost, seeds = COSTS.get(name, 3.0), min(self._seeds, SEEDS.get(name, self._seeds))
            searched = candidates if len(candidates) > 1 else ()
            keys = [f"search-{name}-{number}" for number in range(len(searched))]
            found += [
                Unit(key, {**self._protocol, "seed": 0, "part": "search", **candidate}, cost)
                for key, candidate in zip(keys, searched, strict=True)
            ]
            own = {} if searched else candidates[0]
            found += [
                Unit(
                    f"final-{name}-{seed}", {**self._protocol, "seed": seed, "part": "final", **own}, cost, tuple(keys)
                )
                for seed in range(seeds)
            ]
        return found

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Train one network, and return its scores."""
        from experiments.mnist_bbb.protocol import final, search

        if unit.config["part"] == "search":
            return search(unit.config, context.progress)
        best = min(context.results, key=lambda key: context.results[key]["validation"]["nll"], default=None)
        chosen = context.results[best]["setting"] if best else {}
        return {"chosen": best, **final({**unit.config, **chosen}, context.progress)}

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return tables and a figure with the errors of the paper beside ours."""
        return report(results, self._candidates)


EXPERIMENT = MNIST()
