"""Runs functions of a module in two processes that train together (gloo, CPU): ``python -m two_ranks ...`` in each."""

import importlib
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


def in_two_ranks(module, functions, folder):
    """Call each ``module.function(rank, folder)`` on both; what they print where they fail is in the assertion.

    All in one pair of processes: to start it takes longer than most functions do.
    """
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "two_ranks", module, str(rank), str(folder), *functions],
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


def main(module, rank, folder, *functions):
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for function in functions:
                getattr(importlib.import_module(module), function)(rank, folder)
                dist.barrier()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # gloo's threads sometimes abort a process that winds down in the ordinary way


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
