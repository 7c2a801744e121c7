"""The benchmark of ensembles: a task from end to end, paired differences, and what is finished is kept."""

import dataclasses
import json
import math
import sys

import pytest

import ensembles
from tiny_task import TINY


def run(monkeypatch, tmp_path, capsys, *more):
    monkeypatch.setitem(ensembles.TASKS, "tiny", dataclasses.replace(TINY, epochs=2))
    given = ["ensembles.py", "--task", "tiny", "--output", str(tmp_path), *more]
    monkeypatch.setattr(sys, "argv", given)
    ensembles.main()
    return capsys.readouterr().out, json.loads((tmp_path / "ensembles.json").read_text())


def test_a_task_from_end_to_end_and_what_is_finished_is_not_done_again(monkeypatch, tmp_path, capsys):
    said, report = run(monkeypatch, tmp_path, capsys, "--size", "30", "--seeds", "2")
    units = report["units"]
    assert list(units) == [f"tiny 30/{method}/{seed}" for method in ("adam", "ivon") for seed in (0, 1)]
    assert units["tiny 30/adam/0"]["lr"] in ensembles.RATES
    pairs = [units[f"tiny 30/ivon/{seed}"]["nll"] - units[f"tiny 30/adam/{seed}"]["nll"] for seed in (0, 1)]
    error = abs(pairs[0] - pairs[1]) / 2.0
    assert f"over 2 seeds: nll {sum(pairs) / 2:+.4f} +- {error:.4f}" in said

    def refused(*_):
        raise AssertionError("a finished unit is done again")

    with monkeypatch.context() as patch:
        patch.setattr(ensembles, "unit", refused)
        assert run(patch, tmp_path, capsys, "--size", "30", "--seeds", "2")[1] == report
        with pytest.raises(AssertionError, match="done again"):
            run(patch, tmp_path, capsys, "--size", "30", "--seeds", "2", "--again")
    said, report = run(monkeypatch, tmp_path, capsys, "--seeds", "1", "--size", "40")
    assert "tiny 40: one pair at most" in said
    assert len(report["units"]) == 6
    assert all(math.isfinite(value) for unit in report["units"].values() for value in unit.values())
