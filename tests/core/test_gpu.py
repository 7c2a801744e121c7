"""Kernels of a GPU, run by Triton's interpreter on a CPU; each test is a process, as triton must be imported for it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
CASES = Path(__file__).with_name("interpreted.py")
ROOT = Path(__file__).parents[2]
NAMES = [line.split("(")[0].removeprefix("def ") for line in CASES.read_text().splitlines() if line.startswith("def case_")]


@pytest.mark.parametrize("name", NAMES)
def test_interpreted(name):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), str(CASES.parent)])
    command = [sys.executable, "-W", "error", str(CASES), name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
