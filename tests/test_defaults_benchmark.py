"""The benchmark of untouched defaults: a task of one's own from end to end, and the numbers that it decides by."""

import dataclasses
import json
import math
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

import bayesadam as ba

# At the end: folders of tests have the names of some benchmarks.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import continual
import defaults
import pruning
from default_runs import comparison
from default_runs.journal import Journal
from default_runs.scores import scaled, temperature
from default_runs.training import Plan, plan_of, train, untouched
from default_runs.units import quick
from default_runs.width import ggn_diagonal, reference
from default_tasks.images import shift_and_flip
from default_tasks.lora import LowRank
from default_tasks.task import Data, Task, divide, positions
from default_tasks.text import BLOCK, windows


def points(seed, size, *, classes=3):
    """Three clouds in four dimensions, of which the outside points are far."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(90) % classes
    x = torch.randn(90, 4, generator=generator) + 2.0 * functional.one_hot(y, 4)
    rows = divide(90, seed, size or 45, 20, 25)
    return Data(*((x[part], y[part]) for part in rows), outside=9.0 + x[:20])


def perceptron(data):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


TINY = Task("tiny", points, perceptron, ba.Categorical, batch_size=15, epochs=4, seeds=2, outside="far points")


def arguments(monkeypatch, tmp_path, *more):
    monkeypatch.setitem(defaults.ALL, "tiny", TINY)
    given = ["defaults.py", "--task", "tiny", "--workers", "1", "--output", str(tmp_path), *more]
    monkeypatch.setattr(sys, "argv", given)


def test_a_task_from_end_to_end_and_what_is_finished_is_not_done_again(monkeypatch, tmp_path, capsys):
    methods = {"adam", "vadam", "vogn"}
    arguments(monkeypatch, tmp_path, "--optimizer", *sorted(methods))
    defaults.main()
    said = capsys.readouterr().out
    lines = (tmp_path / "defaults" / "tiny.jsonl").read_text().splitlines()
    report = json.loads((tmp_path / "defaults.json").read_text())

    assert len(lines) == 2 * len(methods)
    assert max(map(len, lines)) < 1000
    assert report["tasks"]["tiny"]["outside"] == "far points"
    assert {*report["tasks"]["tiny"]["adam"]} == {"scores", "scaled", "ensemble", "seconds"}
    assert {*report["verdicts"]} == methods - {"adam"}
    for method in report["verdicts"]:
        result = report["tasks"]["tiny"][method]
        assert result["seeds"] == 2
        assert {*result["worse"]} == {"nll", "accuracy", "ece", "auroc"}
        assert 0 < result["ratio"][0] <= result["ratio"][1] <= result["ratio"][2]
        assert f"{method}: 1 tasks" in said

    defaults.main()
    assert f"{2 * len(methods)} units, {2 * len(methods)} of them finished before" in capsys.readouterr().out
    assert (tmp_path / "defaults" / "tiny.jsonl").read_text().splitlines() == lines
    again = json.loads((tmp_path / "defaults.json").read_text())
    assert again["tasks"] == report["tasks"]


def test_a_run_that_was_killed_while_it_wrote_goes_on(monkeypatch, tmp_path, capsys):
    arguments(monkeypatch, tmp_path, "--optimizer", "ivon", "--seeds", "1", "--quick")
    defaults.main()
    path = tmp_path / "defaults" / "tiny.jsonl"
    whole = path.read_text()
    adam, ivon = whole.splitlines()
    path.write_text(f"{adam}\n{ivon[:50]}")
    capsys.readouterr()
    defaults.main()
    assert "2 units, 1 of them finished before" in capsys.readouterr().out
    records = Journal(path.parent).read(quick(TINY))
    assert {key: record["scores"] for key, record in records.items()} == {
        ("tiny", 0, "adam"): json.loads(adam)["scores"],
        ("tiny", 0, "ivon"): json.loads(ivon)["scores"],
    }
    assert Journal(path.parent).read(TINY) == {}  # other epochs


def test_optimisers_are_told_what_they_ask_for_and_no_more(monkeypatch):
    told = []

    def asks(params, lr=0.1, *, num_data, total_steps=None):
        told.append({"num_data": num_data, "total_steps": total_steps})

    def asks_nothing(params, lr=0.1, *, num_data):
        told.append({"num_data": num_data})

    for number, kind in enumerate((asks, asks_nothing)):
        monkeypatch.setitem(sys.modules["default_runs.training"].OURS, f"own-{number}", kind)
        untouched(f"own-{number}")(nn.Linear(1, 1), Plan(num_data=45, batch_size=15, total_steps=12))
    assert told == [{"num_data": 45, "total_steps": 12}, {"num_data": 45}]


def test_data_are_counted_in_what_the_loss_is_a_mean_of():
    x = torch.zeros(10, 7, dtype=torch.long)
    data = Data((x, x), (x, x), (x, x))
    text = Task("text", lambda seed, size: data, perceptron, ba.Categorical, batch_size=4, epochs=3)
    assert plan_of(text, data) == Plan(70, 28, 9)
    assert plan_of(text, data, sums_positions=True) == Plan(10, 4, 9, sums_positions=True)
    two = Data((torch.zeros(10, 3), torch.zeros(10, 2)), (x, x), (x, x))
    table = Task("table", lambda seed, size: two, perceptron, ba.Gaussian, batch_size=4, epochs=3)
    assert positions(table, two) == 1


def test_sequences_as_examples_have_the_same_objective():
    """Tokens as examples or sequences as examples: the sum over all data is the same."""
    tokens = torch.randint(0, 5, (12, 8), generator=torch.Generator().manual_seed(0))
    data = Data((tokens, tokens), (tokens, tokens), (tokens, tokens))
    task = Task("t", lambda seed, size: data, lambda data: nn.Embedding(5, 5), ba.Categorical, batch_size=12, epochs=1)
    kept = {}

    def make(sums, model, plan):
        class Keeping(torch.optim.SGD):
            def step(self, closure=None):
                kept[sums] = plan.num_data * model.weight.grad.clone()

        return Keeping(model.parameters(), lr=0.0)

    for sums in (False, True):
        train(task, data, partial(make, sums), 0, sums_positions=sums)
    torch.testing.assert_close(kept[True], kept[False])


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


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, [6.0 / 0.5 + 2.0, 8.0 / 0.5 + 2.0]),
        ({"prior_precision": torch.tensor([3.0, 5.0])}, [6.0 / 0.5 + 3.0, 8.0 / 0.5 + 5.0]),
        ({"prior_precision": 7.0}, [6.0 / 0.5 + 7.0, 8.0 / 0.5 + 7.0]),
    ],
    ids=["of the group", "per weight", "per tensor"],
)
def test_reference_has_temperature_and_prior(state, expected):
    model = nn.Linear(2, 1, bias=False)
    groups = [
        {"params": [nn.Parameter(torch.zeros(1))], "temperature": 1.0, "prior_precision": 100.0},
        {"params": [model.weight], "temperature": 0.5, "prior_precision": 2.0},
    ]
    optimizer = SimpleNamespace(param_groups=groups, state={model.weight: state})
    trained = SimpleNamespace(model=model, optimizer=optimizer)
    assert reference(trained, "weight", torch.tensor([6.0, 8.0])).tolist() == expected


def test_temperature_finds_by_how_much_logits_are_too_large():
    generator = torch.Generator().manual_seed(0)
    logits = 2.0 * torch.randn(20_000, 4, generator=generator)
    target = torch.distributions.Categorical(logits=logits).sample()
    sharp = ba.ClassificationPredictive((3.0 * logits).log_softmax(-1)[None])
    assert temperature(sharp, target) == pytest.approx(3.0, rel=0.05)
    torch.testing.assert_close(scaled({"test": sharp}, 3.0)["test"].class_probs, logits.softmax(-1))
    y = 5.0 * torch.randn(20_000, 1, generator=generator)
    narrow = ba.RegressionPredictive(torch.zeros(1, 20_000, 1), torch.ones(1, 20_000, 1))
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


def test_images_are_moved_by_at_most_a_pixel_and_mirrored():
    images = torch.rand(50, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    found = shift_and_flip(images, torch.Generator().manual_seed(1))
    padded = functional.pad(images, (1, 1, 1, 1), value=float(images.min()))
    seen = set()
    for number in range(50):
        moves = [
            (down, right, mirrored)
            for down in range(3)
            for right in range(3)
            for mirrored in (False, True)
            if padded[number, 0, down : down + 6, right : right + 6]
            .flip([1] if mirrored else [])
            .equal(found[number, 0])
        ]
        assert len(moves) == 1
        seen.add(moves[0])
    assert len(seen) > 12  # of 18


def test_windows_of_different_parts_share_no_block():
    codes = torch.arange(BLOCK * 40)
    parts = windows(codes, 0, 100, 200, 20, 50)
    blocks = [set((cut // BLOCK).flatten().tolist()) for cut, _ in parts]
    assert [len(cut) for cut, _ in parts] == [200, 20, 50]
    assert len(set.union(*blocks)) == sum(map(len, blocks))
    for cut, label in parts:
        assert (cut[:, 1:] - cut[:, :-1] == 1).all()
        assert label.equal(cut[:, 0] // BLOCK * 8 // 40)
        assert len(set(cut[:, 0].tolist())) == len(cut)


def test_a_low_rank_correction_starts_at_nothing_and_trains_alone():
    layer = nn.Linear(5, 3)
    corrected, x = LowRank(layer, 2), torch.randn(4, 5)
    assert corrected(x).equal(layer(x))
    assert [name for name, p in corrected.named_parameters() if p.requires_grad] == ["down.weight", "up.weight"]


def test_pruning_compares_two_rankings_of_the_same_weights():
    found = pruning.run(TINY, ["ivon"], 0)
    assert list(found) == ["Adam", "ivon magnitude", "ivon signal_to_noise"]
    data = TINY.load(0)
    trained = train(TINY, data, untouched("ivon"), 0)
    q = trained.posterior().prune(pruning.LEVELS[0])
    probs = ba.predict(trained.model, q, data.test[0], likelihood=trained.likelihood, method="mean").probs
    assert found["ivon signal_to_noise"][0] == pytest.approx(ba.metrics.accuracy(probs, data.test[1]))


def test_pruning_leaves_out_what_refuses_the_network(capsys):
    def normalised(data):
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    found = pruning.run(dataclasses.replace(TINY, model=normalised), ["vogn"], 0)
    assert list(found) == ["Adam"]
    assert "vogn not supported" in capsys.readouterr().out


def test_tasks_come_one_after_another_and_adam_forgets():
    parts = continual.stages(0, 10)
    assert [sorted(set(data.train[1].tolist())) for data in parts] == [[2 * k, 2 * k + 1] for k in range(5)]
    assert sum(len(data.train[0]) for data in parts) == 1200
    found = continual.run("classes", ["vogn"], 0, 5)
    assert list(found) == ["adam", "vogn"]
    assert 0.15 < found["adam"] < 0.5  # little more than the last of five tasks; all at once it is .97
