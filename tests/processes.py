"""Processes for tests, forked from one that has imported what takes seconds, and nothing else."""

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "pytest",
        "bayesadam",
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
    ]
)
"""For ``PROCESSES.Process`` and ``ProcessPoolExecutor(1, PROCESSES)``; a test's ``os.environ`` is not theirs."""
