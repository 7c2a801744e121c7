"""Kernels of a GPU, run by Triton's interpreter on a CPU, in a process of their own: triton must be imported for it."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
CASES = Path(__file__).with_name("interpreted.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def failures():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    command = [sys.executable, "-W", "error", str(CASES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", re.findall(r"^def (case_\w+)", CASES.read_text(), re.M))
def test_interpreted(name, failures):
    assert not failures[name], failures[name]
