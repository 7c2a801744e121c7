"""The numbers that benchmarks report and decide by."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bayesadam as ba
from default_runs import comparison
from default_runs.scores import scaled, temperature
from default_runs.width import ggn_diagonal
from default_tasks.task import Data, Task
from tiny_task import TINY


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
