"""The benchmarks of a GPU: the one that needs none holds what it must, and the one that needs one has no errors."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayesadam import native

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]


def report(script, folder, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), "--output", str(folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
    return json.loads((folder / f"{script}.json").read_text())


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or not native.has_compiler(), reason="needs triton and a C++ compiler"
)
def test_what_needs_no_gpu(tmp_path):
    found = report("without_gpu", tmp_path, "--quick")
    assert found["interpreted"]["equal"]
    assert found["compiled"]["spilled_bytes"] == 0
    moved = {name: each.get("bytes_per_weight") for name, each in found["compiled"]["kernels"].items()}
    assert {bytes_ for name, bytes_ in moved.items() if name.endswith("curvature=rule float32")} == {32}
    steps = found["fake"]["steps"]
    with_kernels = steps["IVON train with Triton"]
    assert (with_kernels["kernels"], with_kernels["uploads"], with_kernels["operations"]) == (3, 1, 0)
    assert not with_kernels["waits"]
    assert steps["IVON train, 150 tensors, with Triton"] == with_kernels
    assert all(each["operations"] <= 150 for name, each in steps.items() if name.endswith("without"))
    waits = {name: sum(each["waits"].values()) for name, each in found["fake"]["walks"].items()}
    assert {name: waits[name] for name in waits if waits[name] > WAITS.get(name.split(",")[0], 0)} == {}


WAITS = {
    "predict": 6,
    "Laplace": 18,
    "population": 24,
    "metrics": 16,
    "SWAG": 2,
    "anchored_ensemble": 90,
    "badam": 32,
    "calibrate": 119,
    "compare": 2_555,
    "tune_posterior": 182,
    "pruning_curve": 20,
    "elbo": 2,
    "train_ensemble": 22,
    "train_ensemble of Adam": 13,
    "regressor": 76,
    "classifier": 59,
}
"""How often a call may wait for the device; 0 for steps. The last ones search, and read a score for every candidate:
``compare`` searches for 22 temperatures, one for each fold and one for all rows, of the mean network and the posterior.
"""


def test_what_needs_a_gpu_has_no_errors_on_a_cpu(tmp_path):
    found = report("gpu", tmp_path, "--device", "cpu", "--tiny")
    assert "CUDAGraph" in found.pop("graphs")["error"]
    assert "error" not in json.dumps(found)
    assert found["card"] == "none"
