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

import continual
import defaults
from tiny_task import TINY

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if "\ndef main(" in path.read_text())
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


def test_what_is_finished_is_not_done_again(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(defaults.TASKS, "tiny", dataclasses.replace(TINY, epochs=2))
    given = ["--task", "tiny", "--seeds", "2", "--optimizer", "adam", "bayesadam", "--workers", "1"]
    monkeypatch.setattr(sys, "argv", ["defaults", *given, "--output", str(tmp_path)])
    path = tmp_path / "defaults.json"
    defaults.main()
    report = json.loads(path.read_text())
    assert {*report["tasks"]["tiny"]["bayesadam"]["worse"]} == {"nll", "accuracy", "ece", "auroc", "samples", "tuned"}

    def refused(*_):
        raise AssertionError("a finished unit is done again")

    monkeypatch.setattr(defaults, "run", refused)
    defaults.main()
    again = json.loads(path.read_text())
    assert {**again, "date": "", "load_averages": 0} == {**report, "date": "", "load_averages": 0}
    assert "4 units, 4 of them finished before" in capsys.readouterr().out


def test_tasks_come_one_after_another_and_adam_forgets():
    parts = continual.stages(0, 10)
    assert [sorted(set(data.train[1].tolist())) for data in parts] == [[2 * k, 2 * k + 1] for k in range(5)]
    found = continual.measure("classes", "adam", 0, 5)
    assert 0.15 < found < 0.5  # little more than the last of five tasks; all at once it is .97
