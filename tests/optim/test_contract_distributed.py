"""Two ranks (gloo, CPU): data parallel, FSDP2, sharded checkpoints. What they do is in workers.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "function",
    [
        "data_parallel",
        "hessian_of_a_quadratic",
        "sharded",
        "sharded_checkpoint",
        "bad_gradient_in_one_shard",
        "sharded_on_any_axis",
        "posterior_as_prior_of_a_sharded_network",
    ],
)
def test_two_ranks(function, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "optim.workers", str(rank), function, str(tmp_path)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
