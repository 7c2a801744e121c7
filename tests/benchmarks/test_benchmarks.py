"""Benchmarks: each that can be made small runs once, and where all of them write.

A run of one's own must not change the numbers that the documentation is compared with.
"""

import dataclasses
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

import continual
import defaults
from default_runs.candidates import CANDIDATES
from default_tasks import FURTHER, TASKS, positions
from default_tasks.made_up import made_up
from tiny_task import TINY

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if "save(options.output" in path.read_text())
COMMITTED = ROOT / "benchmarks" / "results"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a benchmark with arguments; gives its report."""

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{script}.py", "--output", str(tmp_path), *arguments])
        runpy.run_path(str(ROOT / "benchmarks" / f"{script}.py"), run_name="__main__")
        return json.loads((tmp_path / f"{script}.json").read_text())

    return run


def test_results_go_to_a_folder_that_git_ignores_unless_another_is_named(tmp_path):
    record = runpy.run_path(str(ROOT / "benchmarks" / "record.py"))
    parser = record["arguments"]("What it measures.")
    assert parser.parse_args([]).output == ROOT / "runs" / "benchmarks"
    assert "/runs/" in (ROOT / ".gitignore").read_text().splitlines()
    record["save"](parser.parse_args(["--output", str(tmp_path / "results")]).output / "one.json", {"seconds": 1.5})
    assert json.loads((tmp_path / "results" / "one.json").read_text()) == {"seconds": 1.5}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_and_its_committed_result(script):
    """Scripts write where they are told; results say when they were made, with which versions, and on what."""
    assert re.findall(r"\bsave\(([^,]+),", script.read_text()) == [f'options.output / "{script.stem}.json"']
    report = json.loads((COMMITTED / script.with_suffix(".json").name).read_text())
    assert {"date", "versions", "cpu", "threads"} < report.keys()


def test_every_committed_result_has_its_benchmark():
    assert {path.stem for path in COMMITTED.glob("*.json")} == {path.stem for path in SCRIPTS}


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("iteration", ["--cases", "mlp", "--contenders", "squares"]),
        ("optimizer_step", ["--cases", "1e4 in 16", "--contenders", "Vadam blocks"]),
    ],
)
def test_scripts_that_measure_seconds(run, script, arguments):
    report = run(script, *arguments)
    assert list(report["cases"]) == [arguments[1]]


def test_a_network_with_batch_norm_is_scored_in_all_ways(run):
    means = run("batch_norm", "--task", "digits", "--seeds", "1")["means"]
    assert len(means) == 3
    for ways in means.values():
        assert len({way["nll"][0] for way in ways.values()}) == 5
        assert ways["mean, at the mean"]["accuracy"][0] > 0.95


@pytest.fixture
def tries(monkeypatch, tmp_path):
    """Runs the benchmark of defaults with arguments, on one tiny task, with a journal of its own."""
    monkeypatch.setattr(defaults, "TASKS", {"tiny": dataclasses.replace(TINY, epochs=2)})
    monkeypatch.setattr(defaults, "FURTHER", {"further": dataclasses.replace(TINY, name="further", epochs=2)})
    monkeypatch.setattr(defaults.journal, "TRIALS", tmp_path / "trials")

    def tries(*arguments):
        monkeypatch.setattr(sys, "argv", ["defaults", "--output", str(tmp_path), *arguments])
        defaults.main()

    return tries


def test_a_trial_is_written_to_the_journal_and_not_done_again(tries, monkeypatch, tmp_path, capsys):
    tries("try", "adam")
    tries("try", "bayesadam")
    lines = (tmp_path / "trials" / "bayesadam.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1]
    assert {"mean", "samples", "seconds", "date", "commit"} < json.loads(lines[0]).keys()
    first = capsys.readouterr().out.splitlines()
    monkeypatch.setattr(defaults, "run", None)  # of a unit that is done again
    tries("try", "bayesadam")
    again = capsys.readouterr().out.splitlines()
    assert again == ["bayesadam: 2 units, 2 of them finished before", *first[-3:]]
    assert again[-1].startswith("at most Adam on ")


def test_trials_read_no_test_rows_and_candidates_nothing_but_training_rows(tries, monkeypatch):
    tiny = defaults.TASKS["tiny"]

    def without_test(seed, size):
        return dataclasses.replace(tiny.data(seed, size), test=None, outside=None)

    seen = []

    def candidate(task, data, seed):
        seen.append((len(data.train[0]), len(data.validation[0]), len(data.test[0]), data.outside))
        return CANDIDATES["bayesadam"](task, data, seed)

    monkeypatch.setitem(CANDIDATES, "watcher", candidate)
    monkeypatch.setitem(defaults.TASKS, "tiny", dataclasses.replace(tiny, data=without_test))
    tries("try", "adam")
    tries("try", "watcher")
    assert seen == [(45, 0, 0, None)] * 2


def test_test_rows_are_read_when_it_is_said_and_for_one_candidate(tries, monkeypatch, tmp_path):
    monkeypatch.setitem(CANDIDATES, "second", CANDIDATES["bayesadam"])
    with pytest.raises(SystemExit, match="add --final"):
        tries("final", "bayesadam")
    assert not (tmp_path / "final").exists()
    tries("final", "bayesadam", "--final", "--together")
    report = json.loads((tmp_path / "defaults.json").read_text())
    assert report["seeds"] == [10, 11, 12]
    assert report["tasks"].keys() == {"tiny", "further"}
    assert report["tasks"]["tiny"]["worse"].keys() == {"nll", "samples", "three", "five", "errors", "auroc"}
    assert {"nll", "accuracy", "scaled", "auroc"} < report["tasks"]["tiny"]["samples"].keys()
    with pytest.raises(SystemExit, match="test rows were read for bayesadam"):
        tries("final", "second", "--final")


def test_seeds_of_the_end_are_not_for_trials():
    with pytest.raises(ValueError, match=r"seed must be one of \(0, 1\), got 2"):
        defaults.run(TINY, 2, "bayesadam", final=False)
    with pytest.raises(ValueError, match=r"seed must be one of \(10, 11, 12\), got 0"):
        defaults.run(TINY, 0, "bayesadam", final=True)


def test_further_tasks_cannot_be_tried():
    assert len(FURTHER) == 6
    assert not FURTHER.keys() & TASKS.keys()
    with pytest.raises(KeyError):
        defaults.unit("marked-series", 0, "adam", final=False)


MADE_UP = [task for task in (TASKS | FURTHER).values() if getattr(task.data, "func", None) is made_up]


@pytest.mark.parametrize("task", MADE_UP, ids=lambda task: task.name)
def test_made_up_tasks_can_be_trained(task):
    """Seeds have rows of their own, and every row is one data point with a finite loss."""
    data, other = task.load(0), task.load(1)
    assert len(data.train[0]) == task.size
    assert not torch.equal(data.train[0][:9], other.train[0][:9])
    loss = task.likelihood()(task.model(data)(data.train[0][:50]), data.train[1][:50])
    assert loss.isfinite()
    assert positions(task, data) == 1


def test_tasks_come_one_after_another_and_adam_forgets():
    parts = continual.stages(0, 10)
    assert [sorted(set(data.train[1].tolist())) for data in parts] == [[2 * k, 2 * k + 1] for k in range(5)]
    found = continual.measure("classes", "adam", 0, 5)
    assert 0.15 < found < 0.5  # little more than the last of five tasks; all at once it is .97
