"""How many threads a fit or a prediction uses.

With few rows, operations take microseconds, after each of which threads wait for each other. Beside other work on the
same cores they wait actively until these are free: with two threads a fit of 600 rows took ten times as long as with
one, and a prediction of 150 rows fifty times.

A process that was forked has one thread only, as OpenMP would wait forever for the threads of its parent.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from threadpoolctl import ThreadpoolController

MANY = 20_000
"""Number of rows above which as many threads are used as PyTorch, BLAS and OpenMP are set to."""

Call = TypeVar("Call", bound=Callable[..., Any])


class _Limits:
    """The Python threads that have limited PyTorch to one thread at present, and its number before the first did so.

    PyTorch and OpenMP have a number for every Python thread; of PyTorch's, new ones start with the number that was set
    last. BLAS has one number, so that only one fit at a time limits it.
    """

    lock = threading.Lock()
    users = 0
    usual = 1
    thread = threading.local()
    blas = threading.Lock()
    forked = False


def _after_fork() -> None:
    _Limits.lock, _Limits.forked = threading.Lock(), True


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def torch_threads_for(rows: int) -> Iterator[None]:
    """Context of a prediction: with few rows PyTorch has one thread, whatever it is set to.

    Afterwards the number is as before, also for Python threads that start later, if several of them predict at a time.
    """
    if (rows > MANY and not _Limits.forked) or getattr(_Limits.thread, "limited", False):
        yield
        return
    with _Limits.lock:
        if not _Limits.users:
            _Limits.usual = torch.get_num_threads()
        _Limits.users += 1
    _Limits.thread.limited = True
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_Limits.usual)
        _Limits.thread.limited = False
        with _Limits.lock:
            _Limits.users -= 1


@contextmanager
def threads_for(rows: int) -> Iterator[None]:
    """Context of a fit: with few rows PyTorch, BLAS and OpenMP have one thread, whatever they are set to.

    Afterwards the numbers are as before. A fit that begins during another one leaves BLAS to that one, which would
    otherwise be set back to the number that the second one had found.
    """
    with ExitStack() as limits:
        limits.enter_context(torch_threads_for(rows))
        if rows <= MANY or _Limits.forked:
            pools = ThreadpoolController()
            limits.enter_context(pools.select(user_api="openmp").limit(limits=1))
            if _Limits.blas.acquire(blocking=False):
                limits.callback(_Limits.blas.release)
                limits.enter_context(pools.select(user_api="blas").limit(limits=1))
        yield


def few_threads(method: Call) -> Call:
    """Decorate a method that predicts for inputs ``(N, D)``: it has PyTorch's threads for that many rows."""

    @functools.wraps(method)
    def limited(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        with torch_threads_for(rows_of(X)):
            return method(self, X, *args, **kwargs)

    return limited  # type: ignore[return-value]


def rows_of(X: Any) -> int:
    """Return the number of rows; 0 for something without rows, of which the method explains what is wrong with it."""
    try:
        return len(X)
    except TypeError:
        return 0
