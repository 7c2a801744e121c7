"""Runs functions of a module in processes that train together (gloo, CPU)."""

import copy
import faulthandler
import importlib
import os
import signal
import time
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from processes import PROCESSES

CRASHES = {-signal.SIGSEGV, -signal.SIGABRT}


def in_two_ranks(module, functions, folder, *, size=2):
    """Call each ``module.function(rank, folder)`` on all; what went wrong where they fail is in the assertion.

    Gloo's own thread has been seen to crash (a segmentation fault in ``pt_gloo_runloop``; the cause is not known). A
    run that ended by a crash of a thread that is none of Python's is done again.
    """
    for _ in range(3):
        codes = _exit_codes(module, functions, folder, size)
        errors = "\n".join(path.read_text() for path in sorted(Path(folder).glob("error-*.txt")))
        if CRASHES.isdisjoint(codes) or "Current thread" in errors:
            break
    assert codes == [0] * size, f"exit codes {codes}\n{errors}"


def _exit_codes(module, functions, folder, size):
    (Path(folder) / "rendezvous").unlink(missing_ok=True)
    arguments = [(module, rank, size, folder, functions) for rank in range(size)]
    ranks = [PROCESSES.Process(target=main, args=each, daemon=True) for each in arguments]
    for rank in ranks:
        rank.start()
    end = time.monotonic() + 600  # only ever reached where ranks wait for each other
    try:
        for rank in ranks:
            rank.join(max(end - time.monotonic(), 0))
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    return [rank.exitcode for rank in ranks]


def assert_halves_are_the_whole(rank, net, x, y, **options):
    """Check that the gradient of two halves of a minibatch, one on each of two ranks, is that of the whole."""
    alone = copy.deepcopy(net)
    alone.loss(x, y, **options).backward()
    half, wrapper = slice(4 * rank, 4 * rank + 4), DistributedDataParallel(net)
    net.loss(x[half], y[half], wrapper=wrapper, **options).backward()
    for p, expected in zip(net.parameters(), alone.parameters(), strict=True):
        if p.requires_grad:
            torch.testing.assert_close(p.grad, expected.grad, rtol=1e-11, atol=1e-13)


def main(module, rank, size, folder, functions):
    torch.set_num_threads(1)
    with open(f"{folder}/error-{rank}.txt", "w") as errors:  # also of a crash
        faulthandler.enable(errors)
        try:
            dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for function in functions:
                    getattr(importlib.import_module(module), function)(rank, str(folder))
                    dist.barrier()
        except BaseException:
            errors.write(traceback.format_exc())
            errors.flush()
            os._exit(1)
        os._exit(0)  # gloo's threads sometimes abort a process that winds down in the ordinary way
