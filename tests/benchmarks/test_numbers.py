"""The numbers that benchmarks report and decide by."""

import math

import pytest
import torch

import bayesadam as ba
from default_runs import comparison
from default_runs.scores import mixed_nll, score

pytestmark = pytest.mark.nightly


def scores(nll, errors=0.8, auroc=0.8):
    return {"nll": nll, "errors": errors, "auroc": auroc}


def own(mean, samples, *, validation=(0.0, 1.0), **more):
    """A record of a candidate; what is better on validation is the mean unless ``validation`` says else."""
    test = {"mean": scores(mean, **more), "samples": scores(samples)}
    return {"mean": validation[0], "samples": validation[1], "total_seconds": 3.0, "seconds": 2.0, "test": test}


def reference(mean, three=0.1, validation=0.5):
    test = {"mean": scores(mean), "three": {"nll": three}}
    return {"mean": validation, "three": 0.4, "seconds": 1.0, "three_seconds": 3.0, "test": test}


def keyed(records):
    return {("tiny", seed): record for seed, record in enumerate(records)}


def compared(candidate, adam, five=0.25):
    together = [{"seconds": 4.0, "test": {"samples": scores(five)}}] * len(adam)
    return comparison.compare("tiny", keyed(adam), keyed(candidate), keyed(together), range(len(adam)))


def test_differences_are_paired_by_seed():
    result = compared([own(0.3, 0.2), own(0.5, 0.4)], [reference(0.2), reference(0.2, three=0.3)])
    assert result["worse"]["nll"] == pytest.approx([0.2, 0.1])
    assert result["worse"]["samples"] == pytest.approx([-0.1, 0.0])
    assert result["worse"]["three"] == pytest.approx([0.2, 0.0])
    assert result["worse"]["five"] == pytest.approx([0.05, 0.1])
    assert (result["seconds"], result["five_seconds"], result["three_adam_seconds"]) == (2.0, 4.0, 3.0)
    one = compared([own(0.3, 0.2, auroc=0.7)], [reference(0.2)])["worse"]
    assert one["auroc"] == pytest.approx([0.1, math.nan], nan_ok=True)
    assert compared([own(math.nan, 0.2)], [reference(0.2)])["worse"]["nll"] == [math.inf, 0.0]
    assert compared([{"failed": "why"}], [reference(0.2)]) == {"failed": "why"}


def test_validation_rows_choose_between_mean_and_samples():
    """Here test rows would choose the other way."""
    result = compared([own(0.1, 0.9, validation=(1.0, 0.0))], [reference(0.2)])
    assert result["chosen"] == ["samples"]
    assert result["worse"]["nll"][0] == pytest.approx(0.7)


def test_verdict_counts_what_was_asked():
    adam = [reference(0.2), reference(0.2)]
    better = compared([own(0.1, 0.0, errors=0.9), own(0.11, 0.0, errors=0.9)], adam)
    worse = compared([own(0.3, 0.4), own(0.32, 0.4)], adam)
    slightly = compared([own(0.205, 0.1), own(0.205, 0.1)], adam)
    noisy = compared([own(0.1, 0.0), own(0.5, 0.4)], adam)
    verdict = comparison.verdict({"a": better, "b": worse, "c": slightly, "d": noisy, "e": {"failed": "why"}})
    assert verdict["clearly_worse"] == ["b", "e"]
    assert verdict["nll"] == {"reached": 1, "of": 5}
    assert verdict["samples"] == {"reached": 3, "of": 5}
    assert verdict["errors"] == {"reached": 4, "of": 5}


def test_the_table_shows_the_better_of_mean_and_samples_beside_adam():
    candidate = keyed([own(9.0, 9.0, validation=(0.7, 0.4)), own(9.0, 9.0, validation=(0.7, 0.2))])
    adam = keyed([reference(9.0), reference(9.0), reference(9.0, validation=7.0)])
    lines = comparison.table(["tiny", "not run"], adam, candidate, range(3))
    assert lines[1].split() == ["tiny", "0.7000", "0.3000", "0.5000", "-0.2000", "0.4000", "3.0", "1.0"]
    assert lines[2:] == ["at most Adam on 1 of 1 tasks, 6 processor seconds; worst: tiny"]
    failed = comparison.table(["tiny"], adam, keyed([{"failed": "why", "total_seconds": 1.0}]), range(1))
    assert failed[1].split()[4] == "inf"


def test_a_mixture_of_networks_has_the_mean_density():
    probs = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])
    members = [ba.predictive.ClassificationPredictive(one.log()[None]) for one in probs]
    assert mixed_nll(members, torch.tensor([1])) == pytest.approx(-math.log(0.3))


def test_errors_are_told_by_the_entropy():
    probs = torch.tensor([[0.99, 0.01], [0.9, 0.1], [0.6, 0.4]])
    prediction = ba.predictive.ClassificationPredictive(probs.log()[None])
    assert score(prediction, torch.tensor([0, 0, 1]))["errors"] == 1.0
    assert score(prediction, torch.tensor([0, 1, 0]))["errors"] == 0.5
    assert "errors" not in score(prediction, torch.tensor([0, 0, 0]))
