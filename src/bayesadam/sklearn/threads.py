"""How many threads a fit uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

MANY = 20_000
"""Number of rows above which a fit uses as many threads as PyTorch, BLAS and OpenMP are set to."""


@contextmanager
def threads_for(rows: int) -> Iterator[None]:
    """Context of a fit: with few rows it has one thread, whatever the threads are set to.

    Its operations take microseconds, after each of which threads wait for each other. Beside other work on the same
    cores they wait actively until these are free: 600 rows took ten times as long with two threads as with one.
    """
    if rows > MANY:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
