"""Running units: results, resuming, phases, failures; the page between its two comments; the command line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import experiments
from experiments.__main__ import main
from experiments.framework import BEGIN, END, RUNS, finished, plain, run, write

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
TOY = """
import json, os, signal
from pathlib import Path
import pandas as pd
from matplotlib.figure import Figure
from experiments.framework import Report, Unit, save
import torch
TITLE, SOURCE = "A toy", "Nobody 1999"

def units():
    listed = json.loads(Path(__file__).with_name("units.json").read_text())
    return [Unit(key, config, **more) for key, config, more in listed]

def twice(value):
    with open("calls.txt", "a") as file:
        file.write(f"{value} ")
    return 2 * value

def run(unit, context):
    if unit.config.get("fail"):
        raise ValueError("no luck")
    path = context.folder / "walk.pt"
    walk = torch.load(path) if path.exists() else [0]
    begun = len(walk)
    while len(walk) < unit.config["steps"]:
        walk.append((75 * walk[-1] + context.memory.cache(twice)(len(walk))) % 65537)
        save(path, walk)
        context.progress(len(walk), unit.config["steps"], f"step {len(walk)}")
        if unit.config.get("die") == len(walk) and begun == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    needed = unit.config.get("needs")
    return {"walk": walk, "threads": torch.get_num_threads(), "needed": needed and context.results[needed]["walk"][-1]}

def report(results):
    rows = [(key, float(result["walk"][-1])) for key, result in results.items()]
    table = pd.DataFrame([*rows, ("unknown", None)], columns=["unit", "end"], dtype=object)
    return Report({"Walks": table}, {"walks": Figure()})
"""


@pytest.fixture
def toy(tmp_path, monkeypatch, set_threads):
    """A function that writes the units of an experiment, and returns its module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "__init__.py").write_text(TOY)
    (folder / "README.md").write_text(f"# A toy\n\nBefore.\n\n{BEGIN}\n\n{END}\n\nAfter.\n")

    def write_units(*units):
        (folder / "units.json").write_text(json.dumps(units))
        return __import__("toy")

    yield write_units
    sys.modules.pop("toy", None)


def walks(module):
    return {key: line["result"]["walk"] for key, line in finished(module).items()}


def go(**options):
    return run("toy", jobs=1, runs=Path("runs"), **options)


def test_results_are_lines_and_only_changed_units_are_run_again(toy):
    module = toy(["a", {"steps": 3}, {}], ["b", {"steps": 4}, {}], ["long-b", {"steps": 5}, {"optional": True}])
    assert go() == []
    assert walks(module) == {"a": [0, 2, 154], "b": [0, 2, 154, 11556]}
    line = finished(module)["a"]
    assert line["config"] == {"steps": 3}
    assert line["seconds"] > 0
    assert line["versions"]["torch"] == torch.__version__
    assert not list(Path("runs").rglob("*.pt"))
    calls = Path("calls.txt").read_text()
    assert go() == []
    assert Path("calls.txt").read_text() == calls
    toy(["a", {"steps": 2}, {}], ["b", {"steps": 4}, {}])
    assert go() == []
    assert walks(module) == {"a": [0, 2], "b": [0, 2, 154, 11556]}
    assert len(Path("toy/results.jsonl").read_text().splitlines()) == 2
    assert go(fresh=True, only=["b"]) == []
    assert len(Path("calls.txt").read_text().split()) == len(calls.split()) + 1 + 3


def test_only_selects_and_optional_units_run_by_the_beginning_of_their_keys(toy):
    module = toy(["a", {"steps": 2}, {}], ["long-a", {"steps": 3}, {"optional": True}])
    go(only=["a"])
    assert list(walks(module)) == ["a"]
    go(only=["long"])
    assert list(walks(module)) == ["a", "long-a"]
    with pytest.raises(ValueError, match="--only must be part of the key of a unit, got 'c'"):
        go(only=["c"])


def test_a_killed_unit_resumes_to_the_same_result(toy):
    """The process is killed after a checkpoint, and the finished part is not computed again."""
    module = toy(["a", {"steps": 6, "die": 4}, {}], ["b", {"steps": 6}, {}])
    command = "from pathlib import Path; from experiments.framework import run; run('toy', jobs=1, runs=Path('runs'))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), "."])}
    killed = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert Path("calls.txt").read_text() == "1 2 3 "
    assert walks(module) == {}
    assert go() == []
    assert walks(module)["a"] == walks(module)["b"]
    assert Path("calls.txt").read_text() == "1 2 3 4 5 1 2 3 4 5 "
    again = command.replace("jobs=1", "jobs=1, fresh=True, only=['a']")
    assert subprocess.run([sys.executable, "-c", again], env=environment).returncode == -signal.SIGKILL
    assert list(walks(module)) == ["b"]
    assert go() == []
    assert walks(module)["a"] == walks(module)["b"]
    assert Path("calls.txt").read_text() == "1 2 3 4 5 1 2 3 4 5 1 2 3 4 5 "


def test_units_of_a_later_phase_see_results_and_others_go_on_when_one_fails(toy, capsys):
    """Two worker processes, each with one thread."""
    late, bad = ["late", {"steps": 2, "needs": "a"}, {"phase": 1}], ["bad", {"fail": True}, {}]
    module = toy(late, bad, ["a", {"steps": 4}, {}])
    assert run("toy", jobs=2, runs=Path("runs")) == ["bad"]
    assert {key: line["result"]["needed"] for key, line in finished(module).items()} == {"late": 11556, "a": None}
    assert {line["result"]["threads"] for line in finished(module).values()} == {1}
    assert "bad failed: ValueError: no luck" in capsys.readouterr().err
    toy(["late", {"steps": 3, "needs": "b"}, {"phase": 1}])
    assert go() == ["late"]


def test_the_page_is_written_between_its_comments(toy):
    module = toy(["a", {"steps": 3}, {}], ["b", {"steps": 4}, {}])
    go(only=["a"])
    write(module)
    page = Path("toy/README.md").read_text()
    table = "**Walks**\n\n| unit | end |\n| --- | ---: |\n| a | 154 |\n| unknown | - |"
    missing = "**Not finished**: results of 1 of 2 units."
    assert page == f"# A toy\n\nBefore.\n\n{BEGIN}\n\n{missing}\n\n{table}\n\n{END}\n\nAfter.\n"
    write(module)
    assert Path("toy/README.md").read_text() == page
    assert Path("toy/walks.png").is_file()
    Path("toy/README.md").write_text("# No comments")
    with pytest.raises(ValueError, match="must have one line"):
        write(module)


def test_numbers_that_are_not_finite_become_null():
    found = plain(
        {"a": [1.0, float("nan")], "b": torch.tensor([2.0, float("inf")]), "c": np.float32(0.5), "d": (1, "x")}
    )
    assert found == {"a": [1.0, None], "b": [2.0, None], "c": 0.5, "d": [1, "x"]}


def test_the_command_line(toy, monkeypatch, capsys):
    toy(["good", {"steps": 3}, {}], ["bad", {"fail": True}, {}], ["long-good", {"steps": 4}, {"optional": True}])
    monkeypatch.setattr(experiments, "NAMES", ("toy",))
    monkeypatch.setattr("experiments.__main__._module", lambda name: name)
    assert RUNS.parts[-2:] == ("runs", "experiments")
    monkeypatch.setattr(run, "__kwdefaults__", {**run.__kwdefaults__, "runs": Path("runs")})
    assert main(["run", "toy", "--only", "good", "--jobs", "1"]) == 0
    assert main(["run", "toy", "--jobs", "1"]) == 1
    assert main(["run", "toy", "--only", "other"]) == 2
    assert main(["list"]) == 0
    line = (
        "1 of   2 units and   0 of   1 optional ones finished,  0.00 h of processor time; left: 1 of bad-, 1 of long-."
    )
    assert f"{line} A toy (Nobody 1999)" in capsys.readouterr().out
    assert main(["report", "toy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:4]] == [["unit", "end"], ["good", "154.0"], ["unknown", "-"]]
    with pytest.raises(SystemExit):
        main(["report", "unknown"])
