"""The units: one per data set and estimator, which fits the splits in turn. A stopped unit keeps finished splits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.experiment import Context, Experiment, Report, Unit
from experiments.files import write_text
from experiments.results import Result
from experiments.uci_best.report import report

ROWS = {
    "boston": 506,
    "concrete": 1_030,
    "energy": 768,
    "kin8nm": 8_192,
    "naval": 11_934,
    "power": 9_568,
    "protein": 45_730,
    "wine": 1_599,
    "yacht": 308,
}
SPLITS = {"protein": 5}
"""Number of published splits of the data sets with fewer than 20."""

ESTIMATORS: dict[str, dict[str, Any]] = {
    "bayesadam": {},
    "deep-ensemble": {"members": 5, "hidden": 50, "steps": 4_000, "least_epochs": 40, "batch_size": 100, "lr": 0.01},
    "gaussian-process": {"restarts": 1},
    "ngboost": {"trees": 2_000, "patience": 50, "held_out": 0.1},
    "catboost": {"patience": 50, "held_out": 0.1},
    "catboost-tuned": {
        "patience": 50,
        "held_out": 0.1,
        "grid": {"depth": [4, 6, 8], "learning_rate": [0.03, 0.1]},
    },
}
"""Settings of the estimators. ``bayesadam`` is ``BayesianMLPRegressor()``, which chooses on training splits only."""

GP_ROWS = 2_000


class UCIBest(Experiment):
    """The table of the overall comparison. The arguments shorten the experiment for tests."""

    name = "uci-best"
    title = "One recipe for nine UCI data sets, beside the best published numbers"
    source = "Khan et al. 2018, Table 1; Gal and Ghahramani 2016 as rerun in 2018; PBP; VBLL"

    def __init__(
        self,
        datasets: Sequence[str] = tuple(ROWS),
        splits: int = 20,
        own: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._datasets, self._splits, self._own = tuple(datasets), splits, dict(own or {})

    def units(self) -> list[Unit]:
        """Return one unit per data set and estimator; those of our estimator come first."""
        found = []
        for estimator, settings in ESTIMATORS.items():
            for dataset in self._datasets:
                if estimator == "gaussian-process" and ROWS[dataset] > GP_ROWS:
                    continue
                config = {
                    "dataset": dataset,
                    "splits": min(self._splits, SPLITS.get(dataset, self._splits)),
                    "estimator": estimator,
                    "settings": {**settings, **self._own.get(estimator, {})},
                }
                cost = (1.0 + ROWS[dataset] / 1_000) * (10.0 if estimator == "bayesadam" else 1.0)
                found.append(Unit(f"{estimator}-{dataset}", config, cost))
        return found

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Fit every split, and return the scores."""
        from experiments.uci_best.estimators import score

        config, path = unit.config, context.folder / "splits.json"
        done: list[dict[str, float]] = json.loads(path.read_text()) if path.exists() else []
        for split in range(len(done), config["splits"]):
            context.progress(split, config["splits"], f"split {split}")
            done.append(score(config["estimator"], config["dataset"], split, config["settings"]))
            write_text(path, json.dumps(done))
        return {"splits": done}

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return our numbers beside the best published ones and those of the other estimators."""
        return report(results, self._datasets)


EXPERIMENT = UCIBest()
