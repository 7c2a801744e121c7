"""The units: one per problem and algorithm, with all runs at once, a short version of each, and the wheel problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.bandits import settings
from experiments.bandits.problems import LENGTHS
from experiments.bandits.report import report
from experiments.experiment import Context, Experiment, Report, Unit
from experiments.results import Result


class Bandits(Experiment):
    """The table, its short ``quick-`` version, and the wheel. The arguments shorten the experiment for tests."""

    name = "bandits"
    title = "Contextual bandits: cumulative reward over that of the optimal policy"
    source = "Kessler et al. 2018, Table 1; problems, neural-linear and the wheel of Riquelme et al. 2018"

    def __init__(
        self,
        algorithms: Mapping[str, settings.Setting] = settings.ALGORITHMS,
        problems: tuple[str, ...] = tuple(LENGTHS),
        quick: tuple[int, int] = (settings.QUICK, settings.QUICK_RUNS),
    ) -> None:
        self._algorithms, self._problems, self._quick = algorithms, problems, quick

    def units(self) -> list[Unit]:
        """Return the units of the table, their short versions, and the units of the wheel."""
        rounds, runs = self._quick
        found = []
        for problem in self._problems:
            for name in self._algorithms:
                if problem not in settings.PROBLEMS.get(name, self._problems):
                    continue
                whole = settings.rounds_of(problem, name)
                found.append(self._unit(f"quick-{problem}-{name}", problem, name, min(rounds, LENGTHS[problem]), runs))
                found.append(self._unit(f"table-{problem}-{name}", problem, name, whole, settings.RUNS))
        for delta in settings.DELTAS:
            for name in filter(self._algorithms.__contains__, settings.WHEEL):
                game, length = f"wheel-{delta}", settings.WHEEL_ROUNDS
                found.append(self._unit(f"{game}-{name}", game, name, length, settings.WHEEL_RUNS))
        return found

    def _unit(self, key: str, problem: str, name: str, rounds: int, runs: int) -> Unit:
        config = {"problem": problem, "rounds": rounds, "runs": runs, **self._algorithms[name]}
        return Unit(key, config, settings.cost(name, rounds, runs))

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Play one problem with one algorithm, and return the rewards."""
        from experiments.bandits.protocol import play

        return play(unit.config, context.folder, context.progress)

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return tables and figures with the published numbers beside ours."""
        return report(results)


EXPERIMENT = Bandits()
