"""The landscape of Fig. 7: its minima, independent descents, scores, and the experiment made short."""

import math

import pytest
import torch

from experiments import runner
from experiments.landscape.experiment import METHODS, Landscape
from experiments.landscape.protocol import descend, objective, scores, search, starts
from experiments.results import Store, finished


class Short(Landscape):
    def __init__(self, folder):
        super().__init__(steps=20, starts=7, tuning_sets=[100], test_sets=[0, 1], lr=[0.01, 0.03])
        self._folder = folder

    @property
    def folder(self):
        return self._folder


def test_the_minimum_is_on_a_line_and_at_isolated_points():
    y = torch.linspace(-1, 1, 21, dtype=torch.float64)
    line = torch.stack([torch.zeros_like(y), y], 1)
    assert objective(line) == pytest.approx(-torch.ones(21, dtype=torch.float64), abs=1e-12)
    isolated = torch.tensor([[0.3142, 0.4712], [-0.3142, -0.4712], [0.6283, 0.7854]], dtype=torch.float64)
    assert (objective(isolated) < -0.999).all()
    x, y = 0.4, -0.2
    first = x * math.sin(20 * y) + y * math.sin(20 * x)
    second = x * math.cos(10 * y) - y * math.sin(10 * x)
    point = torch.tensor([x, y], dtype=torch.float64)
    assert objective(point).item() == pytest.approx(-math.exp(-(first**2) - second**2), rel=1e-12)


def test_starts_are_those_of_the_seed_and_fill_the_square():
    points = starts(0, 1000)
    assert torch.equal(points[:1000], starts(0, 1000))
    assert not torch.equal(points, starts(1, 1000))
    assert (points.abs() <= 1).all()
    assert (points.abs() > 0.9).any(0).all()


@pytest.mark.parametrize("method", METHODS)
def test_rows_descend_on_their_own(method):
    """A row's end does not depend on the other rows' values."""
    config = {**Landscape(steps=10).units()[0].config, **METHODS[method], "method": method}
    first = starts(0, 4)
    other = torch.cat([first[:2], -first[2:]])
    one, two = (descend(points, config, 0.01, 10.0)[-1] for points in (first, other))
    assert torch.equal(one[:2], two[:2])
    assert not torch.equal(one[2:], two[2:])
    assert (one != first).all()


def test_the_temperature_falls_to_zero(monkeypatch):
    import bayesadam as ba

    seen = []
    step = ba.Vadam.step
    monkeypatch.setattr(
        ba.Vadam, "step", lambda self, c: (seen.append(self.param_groups[0]["temperature"]), step(self, c))
    )
    config = {**METHODS["annealed"], "method": "annealed", "steps": 4}
    descend(starts(0, 2), config, 0.01, 1.0)
    assert seen == [1.0, 0.75, 0.5, 0.25]


def test_scores():
    ends = torch.tensor([[0.0, 0.9], [0.01, 0.05], [0.31415926, 0.47123889], [0.6, 1.3]], dtype=torch.float64)
    found = scores(ends, 1)
    assert found["line"] == 0.5
    assert found["centre"] == 0.25
    assert found["deep"] == 0.75
    assert found["outside"] == 0.25
    assert found["value"] == pytest.approx(objective(ends).mean().item())
    assert scores(torch.tensor([[0.0, 0.0]], dtype=torch.float64), 1)["curvature"] == pytest.approx(2.0, abs=1e-9)


def test_the_setting_is_chosen_from_the_tuning_starts():
    config = {**Landscape(steps=30, starts=20, lr=[1e-6, 1e-3]).units()[0].config, "tuning_sets": [3], "test_sets": [4]}
    found = search(config, lambda *_: None)
    assert found["lr"] == 1e-3
    assert [one["lr"] for one in found["tried"]] == [1e-6, 1e-3]
    ends = descend(starts(4, 20), config, 1e-3, 1.0)[-1]
    assert found["sets"] == [scores(ends, 30)]
    assert found["ends"] == pytest.approx(ends.float())
    assert found["paths"].shape == (4, 30 // 5 + 1, 2)


def test_every_method_has_a_row_and_a_panel(tmp_path):
    experiment = Short(tmp_path)
    summary = runner.run(experiment, jobs=1, runs=tmp_path / "runs")
    assert summary.failed == {}
    results = finished(experiment.units(), Store.of(experiment, tmp_path / "runs"))
    assert set(results) == set(METHODS)
    report = experiment.report(results)
    assert [row[0] for row in report.tables[0].rows][-1] == "Vadam to VadaGrad, annealed"
    assert len(report.tables[1].rows) == 2 + 3 * 3
    assert [axis.get_title() for axis in report.figures["paths"].axes][:3] == [
        "gradient descent",
        "Adam",
        "Vadam to VadaGrad, annealed",
    ]
    assert report.notes
