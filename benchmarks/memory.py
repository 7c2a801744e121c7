"""Memory of a process, by ``/proc`` of Linux."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def resident(field: str) -> int:
    """Bytes of this process: now (``"VmRSS"``), or at its peak (``"VmHWM"``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a process that has done nothing before: a peak is never forgotten."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
