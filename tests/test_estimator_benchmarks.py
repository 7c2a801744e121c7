"""The scores of the estimators' benchmark, and ``uci-best`` made short."""

import json
import math
import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from experiments.experiment import Context
from experiments.tables import Number, published
from experiments.uci_best import report as uci_report
from experiments.uci_best.estimators import scores
from experiments.uci_best.experiment import ESTIMATORS, UCIBest
from scipy.stats import norm

import bayesadam as ba
import public_tables

SPEC = spec_from_file_location("benchmarked", Path(__file__).parents[1] / "benchmarks" / "estimators.py")
benchmark = module_from_spec(SPEC)  # a folder of tests has its name
SPEC.loader.exec_module(benchmark)

needs_data = pytest.mark.skipif(not os.environ.get("BAYESADAM_DATA"), reason="needs BAYESADAM_DATA: the data sets")
GENERATOR = np.random.default_rng(0)
MEAN, STD = GENERATOR.normal(size=4_000), GENERATOR.uniform(0.5, 2.0, 4_000)
Y = GENERATOR.normal(MEAN, STD)
PLACE = np.linspace(0.0, 2.0, 50) ** 2


def test_scores_of_a_gaussian_are_those_of_its_closed_forms():
    unit = 2.5
    found = benchmark.score(benchmark.gaussian(MEAN, STD, Y), Y, unit)
    exact = ba.metrics.crps(*(torch.from_numpy(v) for v in (MEAN, STD**2, Y))) / unit
    assert found["NLL"] == pytest.approx(-norm.logpdf(Y / unit, MEAN / unit, STD / unit).mean(), abs=1e-12)
    assert found["CRPS"] == pytest.approx(exact, rel=0.01)  # a hundred quantiles
    assert found["RMSE"] == pytest.approx(np.sqrt(np.mean((Y - MEAN) ** 2)) / unit, abs=1e-12)
    for coverage in (0.5, 0.8, 0.95):
        assert abs(found[f"covered {coverage:.0%}"] - coverage) < 4 * math.sqrt(coverage * (1 - coverage) / len(Y))


def test_a_constant_deviation_has_no_rank_correlation():
    error = (Y - MEAN) ** 2
    assert benchmark.spearman(np.full_like(Y, 0.7), error) == 0.0
    assert benchmark.spearman(STD, error) > 0.3


def test_the_shift_predicts_the_rows_farthest_along_the_first_component():
    x = np.stack([PLACE, PLACE + 0.001 * GENERATOR.normal(size=50)], 1)
    train, test = benchmark.parts(50, x, benchmark.SHIFT)
    assert len(test) == 5
    assert x[test, 0].min() > x[train, 0].max()
    train, test = benchmark.parts(50, x, "1")
    assert sorted([*train, *test]) == list(range(50))


def test_ranks_are_means_over_tables_and_leave_out_what_is_not_everywhere():
    table = {"0": {"a": {"NLL": 1.0}, "b": {"NLL": 0.5}, "c": {"NLL": 0.1}}}
    other = {"0": {"a": {"NLL": 1.0}, "b": {"NLL": 2.0}}, "1": {"a": {"NLL": 1.0}, "b": {"NLL": 3.0}}}
    found = benchmark.ranks({"one": table, "two": other}, ["one", "two"], ("0", "1"), "NLL")
    assert found == {"a": 1.5, "b": 1.5}


def test_tables_become_numbers_by_their_training_rows_alone():
    train = pd.DataFrame({"size": [1.0, np.nan, 3.0, 5.0], "colour": ["red", "blue", "red", None]})
    test = pd.DataFrame({"size": [np.nan, 100.0], "colour": ["green", "blue"]})
    x, new = public_tables.numbers(train, test)
    assert np.array_equal(x[:, 0], [1.0, 3.0, 3.0, 5.0])
    assert np.array_equal(x[:, 1], [0.0, 1.0, 0.0, 0.0])
    assert np.array_equal(x[:, 2:], [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])  # blue, red, none
    assert np.array_equal(new, [[3.0, 1.0, 0.0, 0.0, 0.0], [100.0, 0.0, 1.0, 0.0, 0.0]])


@pytest.mark.parametrize("name", [n for n, t in public_tables.CLASSIFICATION.items() if t.package == "scikit-learn"])
def test_tables_of_scikit_learn_load(name):
    frame, y = public_tables.CLASSIFICATION[name].load()
    assert len(frame) == len(y)
    assert public_tables.CLASSIFICATION[name].target not in frame


def test_scores_of_uci_best():
    mean, variance = torch.from_numpy(MEAN), torch.from_numpy(STD**2)
    found = scores(ba.predictive.GaussianPredictive(mean, torch.zeros_like(variance), variance), torch.from_numpy(Y))
    assert found["log_likelihood"] == pytest.approx(norm.logpdf(Y, MEAN, STD).mean(), abs=1e-9)
    assert found["crps"] == pytest.approx(ba.metrics.crps(mean, variance, torch.from_numpy(Y)), rel=0.01)
    assert abs(found["covered_95%"] - 0.95) < 0.015


def test_the_best_published_numbers_are_pointwise_and_not_rounded_to_zero():
    numbers = published(uci_report.Path(uci_report.__file__).with_name("paper.csv"))
    assert uci_report.best_published(numbers, "naval", "rmse")[1].mean == pytest.approx(0.00074)
    assert uci_report.best_published(numbers, "kin8nm", "log_likelihood")[1].mean == pytest.approx(1.13643)
    assert uci_report.best_published(numbers, "energy", "log_likelihood")[0] == "VBLL"
    assert not {method for _, method, metric in numbers if metric == "test_loglik"} & {"K18 Vadam", "K18 BBVI"}


def test_better_by_counts_standard_errors_of_both():
    assert uci_report.better_by(Number(1.0, 0.3), Number(0.0, 0.4), 1.0) == pytest.approx(2.0)
    assert uci_report.better_by(Number(1.0, 0.3), Number(0.0, 0.4), -1.0) == pytest.approx(-2.0)


SHORT = {
    "bayesadam": {"members": 2, "epochs": 20, "hidden": [5]},
    "deep-ensemble": {"members": 2, "hidden": 5, "steps": 20, "least_epochs": 1},
    "gaussian-process": {"restarts": 0},
}


@needs_data
def test_uci_best_in_short(tmp_path):
    experiment = UCIBest(["yacht"], splits=2, own=SHORT)
    units = [unit for unit in experiment.units() if unit.config["estimator"] in SHORT]
    assert len(experiment.units()) == len(ESTIMATORS)
    results = {}
    for unit in units:
        found = experiment.run(unit, Context(tmp_path / unit.key, {}, lambda *_: None))
        kept = json.loads((tmp_path / unit.key / "splits.json").read_text())
        assert len(found["splits"]) == 2
        assert kept == found["splits"]
        assert found["splits"][0]["log_likelihood"] != found["splits"][1]["log_likelihood"]
        again = experiment.run(unit, Context(tmp_path / unit.key, {}, lambda *_: None))
        assert again == found  # all splits are in the folder
        results[unit.key] = type("Result", (), {"result": found})
    report = experiment.report(results)
    assert report.tables[0].title.startswith("Pointwise test log-likelihood")
    assert set(report.figures) == {"differences"}
    row = report.tables[0].rows[0]
    assert row[0] == "yacht"
    assert row[1].mean == pytest.approx(
        np.mean([s["log_likelihood"] for s in results["bayesadam-yacht"].result["splits"]])
    )
