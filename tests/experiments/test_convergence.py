"""The protocol of Khan et al. 2018, Fig. 3, made short."""

import math
import os

import numpy as np
import pytest

from experiments import runner
from experiments.convergence.experiment import Convergence
from experiments.convergence.protocol import losses, summary
from experiments.results import Store, finished

pytestmark = pytest.mark.skipif(not os.environ.get("BAYESADAM_DATA"), reason="needs BAYESADAM_DATA: Australian credit")

SHORT = {"iterations": 60, "seeds": 2, "window": 20}


class Short(Convergence):
    """Two seeds, few iterations."""

    def __init__(self, folder):
        super().__init__(((1, 1), (128, 2)), **SHORT)
        self._folder = folder

    @property
    def folder(self):
        return self._folder


def test_all_units_end_with_curves_and_the_report_has_the_papers_numbers(tmp_path):
    experiment = Short(tmp_path)
    summary = runner.run(experiment, jobs=1, runs=tmp_path / "runs")
    assert summary.failed == {}
    results = finished(experiment.units(), Store.of(experiment, tmp_path / "runs"))
    assert set(results) == {f"{method}-{size}" for method in ("bbb", "vadam", "vogn") for size in ("m1-s1", "m128-s2")}
    for result in results.values():
        for metric in ("joint", "pointwise"):
            curves = result.result[metric]
            assert [len(curves[name]) for name in ("low", "median", "high")] == [6, 6, 6]
            assert all(0.2 < value < 20 for value in curves["median"])
            low, high = sorted(curves["seeds_at_end"])
            assert curves["median"][-1] == pytest.approx((low + high) / 2, rel=1e-3)
    report = experiment.report(results)
    text = report.tables[0].markdown()
    assert "| 1, 1 | BBVI | - | 3.13 | - | - | 1.81 | - |" in text  # too short a run for ours
    assert set(report.figures) == {"curves"}
    lines = report.figures["curves"].axes[0].lines
    assert [len(line.get_xdata()) for line in lines] == [6, 6] * 3  # ours and the paper's, of three methods


def test_bbvi_is_that_of_the_paper():
    unit = next(unit for unit in Convergence().units() if unit.key == "bbb-m1-s16")
    expected = {"method": "bbb", "lr": 0.001, "betas": [0.9, 0.999], "prior_precision": 1.0, "initial_precision": 1.0}
    assert unit.config == {**unit.config, **expected, "batch_size": 1, "mc_samples": 16}


def test_at_the_start_the_losses_are_those_of_guessing_and_training_lowers_them():
    units = {unit.key: unit for unit in Short("").units()}
    config = {**units["vadam-m1-s1"].config, "batch_size": 64, "mc_samples": 4, "lr": 0.02, "iterations": 400}
    found = losses(config, lambda *_: None)
    assert found["joint"].shape == (2, 40)
    assert (found["pointwise"][:, -5:].mean(1) < 0.75).all()
    assert (found["pointwise"][:, -5:].mean(1) < found["pointwise"][:, 0]).all()


def test_the_summary_is_a_running_median_and_its_quantiles_over_seeds():
    values = np.array([[5.0, 1.0, 3.0, 9.0], [2.0, 2.0, 8.0, 4.0]])
    found = summary({"joint": values}, {"window": 30, "every": 10})
    assert found["window"] == 30
    smooth = np.array([[5.0, 3.0, 3.0, 3.0], [2.0, 2.0, 2.0, 4.0]])
    np.testing.assert_allclose(found["joint"]["median"], smooth.mean(0))
    np.testing.assert_allclose(found["joint"]["low"], np.quantile(smooth, 0.1, axis=0), rtol=1e-3)
    np.testing.assert_allclose(found["joint"]["high"], np.quantile(smooth, 0.9, axis=0), rtol=1e-3)
    assert found["joint"]["seeds_at_end"] == [3.0, 4.0]


def test_the_split_is_in_halves():
    import bayesadam as ba

    data = ba.data.load("libsvm/australian", split=0)
    assert (len(data.x_train), len(data.x_test)) == (345, 345)
    assert math.isclose(float(data.x.abs().max()), 1.0)
