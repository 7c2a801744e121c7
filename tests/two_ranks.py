"""Runs functions of a module in processes that train together (gloo, CPU): ``python -m two_ranks ...`` in each."""

import importlib
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


def in_two_ranks(module, functions, folder, *, size=2):
    """Call each ``module.function(rank, folder)`` on all; what they print where they fail is in the assertion.

    All in one set of processes: to start it takes longer than most functions do.
    """
    rendezvous = Path(folder) / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "two_ranks", module, str(rank), str(size), str(folder), *functions],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(errors)


def main(module, rank, size, folder, *functions):
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
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
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
