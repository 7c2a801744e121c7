"""The numbers that benchmarks report and decide by."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bayesadam as ba
from default_runs import comparison
from default_runs.scores import collapsed, scaled, temperature
from default_runs.width import ggn_diagonal
from default_tasks.task import Data, Task
from tiny_task import TINY

pytestmark = pytest.mark.nightly


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


def record(nll, accuracy=0.9, ece=0.02, auroc=0.8, *, samples=None, ratio=1.0, **more):
    scores = {"nll": nll, "accuracy": accuracy, "ece": ece, "auroc": auroc}
    ways = {"mean": scores, "samples": {**scores, "nll": nll if samples is None else samples}}
    return {
        "scores": scores,
        **ways,
        "scaled": {**scores, "ece": 0.01},
        "seconds": 1.0,
        "ratio": [0.5, ratio, 1.5],
        **more,
    }


def compared(own, adam, peer=()):
    """Of several seeds."""
    by_method = {"bayesadam": own, "adam": adam, "ivon-opt": peer}
    records = {("tiny", seed, by): one for by, several in by_method.items() for seed, one in enumerate(several)}
    return comparison.compare(TINY, "bayesadam", records)


def test_differences_are_paired_and_ece_is_compared_with_the_scaled_one():
    found = compared([record(0.3), record(0.5)], [record(0.2), record(0.2, auroc=0.9)])
    assert found["worse"]["nll"] == pytest.approx([0.2, 0.1])
    assert found["worse"]["ece"] == pytest.approx([0.01, 0.0])
    assert found["worse"]["auroc"] == pytest.approx([0.05, 0.05])
    one = compared([record(0.3)], [record(0.2), record(9.0)])["worse"]["nll"]  # its own seed, which has no error
    assert one == pytest.approx([0.1, math.nan], nan_ok=True)
    assert compared([{"failed": "why"}], [record(0.2)]) == {"failed": "why", "seeds": 1}
    assert compared([], [record(0.2)]) is None
    assert compared([record(math.nan)], [record(0.2)])["worse"]["nll"] == [math.inf, 0.0]


def test_samples_tuning_and_the_peer_have_differences_of_their_own():
    own = [record(0.3, samples=0.25, tuned={"scaled": {"nll": 0.15}})]
    found = compared(own, [record(0.2)], [record(0.35)])
    expected = {"samples": -0.05, "tuned": -0.05, "peer": -0.05}
    assert {name: found["worse"][name][0] for name in expected} == pytest.approx(expected)
    assert "peer" not in compared(own, [record(0.2)])["worse"]


def test_verdict_counts_what_was_asked():
    adam = [record(0.2), record(0.21), record(0.22)]
    better = compared([record(0.1, auroc=0.9, samples=0.0), record(0.11, auroc=0.9), record(0.12, auroc=0.9)], adam)
    worse = compared([record(0.3, accuracy=0.8, ratio=0.2), record(0.31), record(0.32, samples=0.4)], adam)
    noisy = compared([record(0.1), record(0.5), record(0.1)], adam)
    verdict = comparison.verdict({"a": better, "b": worse, "c": noisy})
    assert verdict["tasks"] == 3
    assert verdict["nll"] == {"reached": 1, "of": 3}
    assert verdict["accuracy_lost"] == ["b"]
    assert verdict["samples"] == {"reached": 2, "of": 3}
    assert verdict["auroc"] == {"reached": 3, "of": 3}
    assert verdict["width_learned"] == {"reached": 3, "of": 3}  # b's mean over seeds is .73
    assert verdict["tuned"] == verdict["peer"] == {"reached": 0, "of": 0}
    failed = comparison.verdict({"a": better, "b": {"failed": "why", "seeds": 3}})
    assert failed["nll"] == {"reached": 1, "of": 2}
    assert failed["accuracy_lost"] == ["b"]


def test_several_samples_are_scaled_as_one_prediction():
    log_probs = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()
    found = collapsed({"test": ba.predictive.ClassificationPredictive(log_probs)})["test"]
    torch.testing.assert_close(found.class_probs, torch.tensor([[0.7, 0.3]]))
    means, variances = torch.tensor([[[0.0]], [[2.0]]]), torch.ones(2, 1, 1)
    found = collapsed({"test": ba.predictive.RegressionPredictive(means, variances)})["test"]
    assert (found.mean.item(), found.variance.item()) == pytest.approx((1.0, 3.0))  # the variance between two is 2
