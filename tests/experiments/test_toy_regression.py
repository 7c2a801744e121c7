"""The six panels, made short."""

import math

import pytest
import torch

from experiments import runner
from experiments.results import Store, finished
from experiments.toy_regression.experiment import ToyRegression
from experiments.toy_regression.protocol import Problem, observed, panel, truth


class Short(ToyRegression):
    def __init__(self, folder):
        super().__init__(steps=60)
        self._folder = folder

    @property
    def folder(self):
        return self._folder


def test_every_method_has_a_panel(tmp_path):
    experiment = Short(tmp_path)
    summary = runner.run(experiment, jobs=1, runs=tmp_path / "runs")
    assert summary.failed == {}
    results = finished(experiment.units(), Store.of(experiment, tmp_path / "runs"))
    assert set(results) == {"gp", "badam", "mc-dropout", "bbb", "vadam", "anchored"}
    for result in results.values():
        found = result.result
        assert len(found["x"]) == len(found["mean"]) == len(found["sd"]) == 400
        assert all(total >= sd >= 0 for total, sd in zip(found["total_sd"], found["sd"], strict=True))
        assert math.isfinite(found["nll"])
    report = experiment.report(results)
    assert len(report.tables[0].rows) == 6
    titles = [axis.get_title() for axis in report.figures["panels"].axes]
    assert titles[:2] == ["Gaussian process", "Badam, linearised"]


def test_the_data_are_those_of_the_paper():
    problem = Problem.draw(0)
    x, y = problem.train
    assert x.shape == y.shape == (200, 1)
    assert (x.min(), x.max()) == (0.0, 0.4975)
    again, other = Problem.draw(0), Problem.draw(1)
    assert torch.equal(again.train[1], y)
    assert not torch.equal(other.train[1], y)
    # The noise is inside the sines: its effect has the standard deviation 0.02 |f'(x)|.
    point = torch.full((20_000, 1), 0.2)
    slope = 1 + 0.6 * math.pi * math.cos(0.4 * math.pi) + 1.2 * math.pi * math.cos(0.8 * math.pi)
    spread = observed(point, torch.Generator().manual_seed(0)) - truth(point)
    assert spread.std().item() == pytest.approx(0.02 * abs(slope), rel=0.05)


def test_scores_of_a_perfect_prediction():
    problem = Problem.draw(0)

    def predict(x):
        zero = torch.zeros(len(x))
        return truth(x)[:, 0], zero, zero + 0.01

    found = panel(problem, predict, {"noise_sd": 0.1})
    assert found["covered_inside"] == found["covered_outside"] == 1
    assert found["sd_far"] == 0
    x, y = problem.test
    z = (y - truth(x)) / 0.1
    expected = 0.5 * z.square().mean() + math.log(0.1) + 0.5 * math.log(2 * math.pi)
    assert found["nll"].item() == pytest.approx(expected.item(), rel=1e-5)
