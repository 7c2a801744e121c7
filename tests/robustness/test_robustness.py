"""Kills and damage, shortly: ``tests/robustness`` has the scripts that count many."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robustness import damaged_posteriors, damaged_runs

FOLDER = Path(__file__).parent


def refused(counts):
    return sum(count for key, count in counts.items() if key[-1] == "refused")


def test_damaged_posteriors_are_refused_by_one_error():
    counts, wrong = damaged_posteriors.run(1000, seed=7)
    assert wrong == []
    assert {way for way, _ in counts} == set(damaged_posteriors.WAYS)
    assert refused(counts) > 450


def test_damaged_runs_are_refused_in_one_line():
    counts, wrong = damaged_runs.run(60, seed=7)
    assert wrong == []
    assert refused(counts) > 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked to be killed")
def test_kills_leave_the_old_or_the_new():
    """In a process of its own, as only one without threads may be forked."""
    path = os.pathsep.join([str(FOLDER.parent), *sys.path[1:]])
    done = subprocess.run(
        [sys.executable, FOLDER / "kills.py", "14", "7"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("14 kills: 0 wrong\n")
    assert done.stdout.count(", killed, ") >= 5
