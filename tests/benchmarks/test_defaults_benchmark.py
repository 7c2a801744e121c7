"""The benchmark of untouched defaults: a task of one's own from end to end, parts of tasks, siblings."""

import dataclasses
import json
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import bayesadam as ba
import continual
import defaults
import pruning
from default_runs.journal import Journal
from default_runs.training import Plan, plan_of, train, untouched
from default_runs.units import quick
from default_tasks.images import shift_and_flip
from default_tasks.lora import LowRank
from default_tasks.task import Data, Task, positions
from default_tasks.text import BLOCK, windows
from tiny_task import TINY, perceptron


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
