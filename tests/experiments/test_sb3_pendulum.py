"""The demonstration of parameter-space exploration in stable-baselines3, made short."""

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3: pip install 'bayesadam[integrations]'")

from experiments import runner
from experiments.results import Store, finished
from experiments.sb3_pendulum.experiment import EXPLORATIONS, Pendulum

SHORT = {"steps": 60, "every": 30, "tests": 2, "hidden": [16, 16], "learning_starts": 20}


class Short(Pendulum):
    def __init__(self, folder):
        super().__init__(1, **SHORT)
        self._folder = folder

    @property
    def folder(self):
        return self._folder


def test_all_explorations_run_and_the_report_shows_them(tmp_path):
    experiment = Short(tmp_path)
    summary = runner.run(experiment, jobs=1, runs=tmp_path / "runs")
    assert (summary.failed, summary.finished) == ({}, len(EXPLORATIONS))
    results = finished(experiment.units(), Store.of(experiment, tmp_path / "runs"))
    for key, result in results.items():
        assert result.result["steps"] == [30, 60]
        returns = np.array(result.result["returns"])
        assert returns.shape == (2, 2)
        assert ((returns < 0) & (returns > -2000)).all()
        width = {"weights-wide": 0.05, "weights-narrow": 0.01}.get(key.removesuffix("-seed0"))
        found = result.result["deviation"]
        assert found is None if width is None else 0.5 * width < found <= width * 1.0001
    report = experiment.report(results)
    text = report.tables[0].markdown()
    assert "| weights, up to 0.05 | 1 |" in text
    assert [line.get_label() for line in report.figures["curves"].axes[0].lines] == [
        *["weights, up to 0.05", "weights, up to 0.01", "actions, 0.1", "none"]
    ]


def test_seeds_come_one_after_the_other():
    costs = {unit.key: unit.cost for unit in Pendulum().units()}
    for name in EXPLORATIONS:
        assert costs[f"{name}-seed0"] > costs[f"{name}-seed1"] > costs[f"{name}-seed2"]
