"""How many threads a fit or a prediction uses.

With few rows, operations take microseconds, after each of which threads wait for each other. Beside other work on the
same cores they wait actively until these are free: with two threads a fit of 600 rows took ten times as long as with
one, and a prediction of 150 rows fifty times.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from bayesadam.sklearn.failures import Call

MANY = 20_000
"""Number of rows above which as many threads are used as PyTorch, BLAS and OpenMP are set to."""


class _Limits:
    """The Python threads that have limited PyTorch to one thread at present, and its number before the first did so.

    PyTorch has a number for every Python thread; new ones start with the number that was set last.
    """

    lock = threading.Lock()
    users = 0
    usual = 1
    own = threading.local()


@contextmanager
def torch_threads_for(rows: int) -> Iterator[None]:
    """Context of a prediction: with few rows PyTorch has one thread, whatever it is set to.

    Afterwards the number is as before, also for Python threads that start later, if several of them predict at a time.
    """
    if rows > MANY or getattr(_Limits.own, "limited", False):
        yield
        return
    with _Limits.lock:
        if not _Limits.users:
            _Limits.usual = torch.get_num_threads()
        _Limits.users += 1
    _Limits.own.limited = True
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_Limits.usual)
        _Limits.own.limited = False
        with _Limits.lock:
            _Limits.users -= 1


@contextmanager
def threads_for(rows: int) -> Iterator[None]:
    """Context of a fit: with few rows PyTorch, BLAS and OpenMP have one thread, whatever they are set to."""
    with torch_threads_for(rows), threadpool_limits(None if rows > MANY else 1):
        yield


def few_threads(method: Call) -> Call:
    """Decorate a method that predicts for inputs ``(N, D)``: it has PyTorch's threads for that many rows."""

    @functools.wraps(method)
    def limited(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            rows = len(X)
        except TypeError:
            rows = 0  # the method explains what is wrong with the inputs
        with torch_threads_for(rows):
            return method(self, X, *args, **kwargs)

    return limited  # type: ignore[return-value]
