"""The numbers that benchmarks report and decide by."""

import math
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from torch import nn

import bayesadam as ba
import public_tables
from default_runs import comparison
from default_runs.scores import scaled, temperature
from default_runs.training import Plan, plan_of
from default_runs.width import ggn_diagonal
from default_tasks.task import Data, Task, positions
from tiny_task import TINY, perceptron

SPEC = spec_from_file_location("benchmarked", Path(__file__).parents[2] / "benchmarks" / "estimators.py")
estimators = module_from_spec(SPEC)  # a folder of tests has its name
SPEC.loader.exec_module(estimators)


@pytest.mark.parametrize("kind", ["softmax", "gaussian"])
def test_curvature_is_the_gauss_newton_diagonal(kind):
    """Of a linear network, whose matrix is known in closed form: a mean over 60 weights is within 10%."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 20, generator=generator)
    model = nn.Linear(20, 3, bias=False)
    likelihood = ba.Categorical() if kind == "softmax" else ba.Gaussian(4.0)
    y = torch.zeros(400, dtype=torch.long) if kind == "softmax" else torch.zeros(400, 3)
    data = Data((x, y), (x, y), (x, y))
    task = Task("linear", lambda seed, size: data, lambda data: model, type(likelihood), batch_size=50, epochs=1)
    trained = SimpleNamespace(model=model, likelihood=likelihood)
    found = ggn_diagonal(task, data, trained, ba.DiagonalGaussian.point_mass(model))["weight"]
    probs = model(x).softmax(-1)
    blocks = probs * (1 - probs) if kind == "softmax" else torch.full((400, 3), 4.0)
    expected = torch.einsum("nc,nd->cd", blocks, x.square()) / 400
    assert (found / expected).mean().item() == pytest.approx(1.0, abs=0.1)


def test_temperature_finds_by_how_much_logits_are_too_large():
    generator = torch.Generator().manual_seed(0)
    logits = 2.0 * torch.randn(20_000, 4, generator=generator)
    target = torch.distributions.Categorical(logits=logits).sample()
    sharp = ba.predictive.ClassificationPredictive((3.0 * logits).log_softmax(-1)[None])
    assert temperature(sharp, target) == pytest.approx(3.0, rel=0.05)
    torch.testing.assert_close(scaled({"test": sharp}, 3.0)["test"].class_probs, logits.softmax(-1))
    y = 5.0 * torch.randn(20_000, 1, generator=generator)
    narrow = ba.predictive.RegressionPredictive(torch.zeros(1, 20_000, 1), torch.ones(1, 20_000, 1))
    assert temperature(narrow, y) == pytest.approx(5.0, rel=0.05)
    assert scaled({"test": narrow}, 5.0)["test"].variance.mean().item() == pytest.approx(25.0)


def record(nll, accuracy=0.9, ece=0.02, auroc=0.8, **more):
    scores = {"nll": nll, "accuracy": accuracy, "ece": ece, "auroc": auroc}
    width = {"sigma": [0.1, 0.1, 0.1], "ratio": [0.5, 1.0, 1.5], "correlation": 0.9, "share_from_start": 0.05}
    return {"scores": scores, "scaled": {**scores, "ece": 0.01}, "seconds": 1.0, **width, **more}


def compared(own, adam):
    """Of several seeds."""
    records = {("tiny", seed, "ivon"): one for seed, one in enumerate(own)}
    records |= {("tiny", seed, "adam"): one for seed, one in enumerate(adam)}
    return comparison.compare(TINY, "ivon", records)


def test_differences_are_paired_and_ece_is_compared_with_the_scaled_one():
    found = compared([record(0.3), record(0.5)], [record(0.2), record(0.2, auroc=0.9)])
    assert found["worse"]["nll"] == pytest.approx([0.2, 0.1])
    assert found["worse"]["ece"] == pytest.approx([0.01, 0.0])
    assert found["worse"]["auroc"] == pytest.approx([0.05, 0.05])
    assert compared([record(0.3)], [record(0.2), record(9.0)])["worse"]["nll"][0] == pytest.approx(0.1)  # its own seed
    assert compared([{"failed": "why"}], [record(0.2)]) == {"failed": "why", "seeds": 1}
    assert compared([{"unsupported": "why"}], [record(0.2)]) == {"unsupported": "why"}
    assert compared([], [record(0.2)]) is None
    assert compared([record(math.nan)], [record(0.2)])["worse"]["nll"] == [math.inf, 0.0]


def test_verdict_counts_what_was_asked():
    adam = [record(0.2), record(0.21), record(0.22)]
    better = compared([record(0.1, auroc=0.9), record(0.11, auroc=0.9), record(0.12, auroc=0.9)], adam)
    worse = compared([record(0.3, ratio=[0.1, 0.2, 0.3]), record(0.31), record(0.32, correlation=0.2)], adam)
    noisy = compared([record(0.1), record(0.5), record(0.1)], adam)
    verdict = comparison.verdict("ivon", {"a": better, "b": worse, "c": noisy, "d": {"unsupported": "why"}})
    assert (verdict["tasks"], verdict["unsupported"], verdict["nll_won"]) == (3, ["d"], 1)
    assert verdict["nll_lost"] == ["b"]  # c is worse on average, but not beyond two standard errors
    assert verdict["accuracy_or_ece_worse"] == ["a", "b", "c"]  # .02 against .01
    assert (verdict["auroc_above"], verdict["with_outside"]) == (1, 3)
    assert verdict["width_not_learned"] == ["b"]
    assert not verdict["nll_won_enough"]
    assert not verdict["never_much_worse"]
    fine = comparison.verdict("ivon", {"a": better, "d": {"unsupported": "why"}})
    assert fine["nll_won_enough"]
    assert fine["never_much_worse"]
    assert fine["accuracy_and_ece_kept"]
    assert fine["auroc_above_enough"]
    assert fine["width_learned"]
    failed = comparison.verdict("ivon", {"a": better, "b": {"failed": "why", "seeds": 3}})
    assert (failed["nll_won"], failed["tasks"], failed["nll_won_enough"]) == (1, 2, False)
    assert not failed["never_much_worse"]
    assert not failed["width_learned"]


def test_a_single_seed_has_no_errors():
    found = compared([record(0.3)], [record(0.2)])
    verdict = comparison.verdict("ivon", {"a": found})
    assert verdict["nll_lost"] == ["a"]
    assert verdict["accuracy_and_ece_kept"] is None


def test_data_are_counted_in_what_the_loss_is_a_mean_of():
    x = torch.zeros(10, 7, dtype=torch.long)
    data = Data((x, x), (x, x), (x, x))
    text = Task("text", lambda seed, size: data, perceptron, ba.Categorical, batch_size=4, epochs=3)
    assert plan_of(text, data) == Plan(70, 28, 9)
    assert plan_of(text, data, sums_positions=True) == Plan(10, 4, 9, sums_positions=True)
    two = Data((torch.zeros(10, 3), torch.zeros(10, 2)), (x, x), (x, x))
    table = Task("table", lambda seed, size: two, perceptron, ba.Gaussian, batch_size=4, epochs=3)
    assert positions(table, two) == 1


def test_scores_of_a_gaussian_are_those_of_its_closed_forms():
    generator = np.random.default_rng(0)
    mean, std, unit = generator.normal(size=4_000), generator.uniform(0.5, 2.0, 4_000), 2.5
    y = generator.normal(mean, std)
    found = estimators.score(estimators.gaussian(mean, std, y), y, unit)
    exact = ba.metrics.crps(*(torch.from_numpy(v) for v in (mean, std**2, y))) / unit
    assert found["NLL"] == pytest.approx(-norm.logpdf(y / unit, mean / unit, std / unit).mean(), abs=1e-12)
    assert found["CRPS"] == pytest.approx(exact, rel=0.01)  # a hundred quantiles
    assert found["RMSE"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)) / unit, abs=1e-12)
    for coverage in (0.5, 0.8, 0.95):
        assert abs(found[f"covered {coverage:.0%}"] - coverage) < 4 * math.sqrt(coverage * (1 - coverage) / len(y))


def test_ranks_are_means_over_tables_and_leave_out_what_is_not_everywhere():
    table = {"0": {"a": {"NLL": 1.0}, "b": {"NLL": 0.5}, "c": {"NLL": 0.1}}}
    other = {"0": {"a": {"NLL": 1.0}, "b": {"NLL": 2.0}}, "1": {"a": {"NLL": 1.0}, "b": {"NLL": 3.0}}}
    found = estimators.ranks({"one": table, "two": other}, ["one", "two"], ("0", "1"), "NLL")
    assert found == {"a": 1.5, "b": 1.5}


def test_tables_become_numbers_by_their_training_rows_alone():
    train = pd.DataFrame({"size": [1.0, np.nan, 3.0, 5.0], "colour": ["red", "blue", "red", None]})
    test = pd.DataFrame({"size": [np.nan, 100.0], "colour": ["green", "blue"]})
    x, new = public_tables.numbers(train, test)
    assert np.array_equal(x[:, 0], [1.0, 3.0, 3.0, 5.0])
    assert np.array_equal(x[:, 1], [0.0, 1.0, 0.0, 0.0])
    assert np.array_equal(x[:, 2:], [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])  # blue, red, none
    assert np.array_equal(new, [[3.0, 1.0, 0.0, 0.0, 0.0], [100.0, 0.0, 1.0, 0.0, 0.0]])
