"""Two ranks (gloo, CPU): data parallel, FSDP2, sharded checkpoints. What they do is in workers.py."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from bayesadam import load_posterior
from optim.conftest import Method
from optim.workers import alone
from two_ranks import in_two_ranks

FUNCTIONS = [
    "data_parallel",
    "hessian_of_a_quadratic",
    "sharded",
    "sharded_checkpoint",
    "low_memory_of_a_sharded_network",
    "bad_gradient_in_one_shard",
    "sharded_on_any_axis",
    "posterior_as_prior_of_a_sharded_network",
    "predictions_of_a_sharded_network",
    "samples_in_tensors_that_are_sharded_otherwise",
    "sharded_after_the_optimiser",
]

OWN_SAMPLES = ["one_sample_for_each_rank", "ranks_hold_different_samples", "own_samples_are_refused_for_shards"]


def test_two_ranks(tmp_path):
    in_two_ranks("optim.workers", FUNCTIONS, tmp_path)


def test_a_sample_for_each_rank(tmp_path):
    in_two_ranks("optim.workers", OWN_SAMPLES, tmp_path)


def test_checkpoints_of_two_ranks_go_on_with_any_number(tmp_path):
    in_two_ranks("optim.workers", ["save_sharded"], tmp_path)
    for size in (1, 2, 4):
        in_two_ranks("optim.workers", ["load_resharded"], tmp_path, size=size)


def test_a_run_whose_worker_is_killed_ends_as_one_that_is_not(tmp_path):
    """``torchrun`` starts both again after the SIGKILL, and they go on from the last checkpoint."""
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "-m", "optim.restarted", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "restarts").read_text() == "1 from 3"
    found = load_posterior(tmp_path / "posterior.safetensors")
    _, opt = alone(Method("ivon"), "train", 1, steps=6, stride=1)
    expected = opt.posterior()
    for name, mean in expected.mean.items():
        torch.testing.assert_close(found.mean[name], mean, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(found.variance[name], expected.variance[name], rtol=1e-9, atol=0)
