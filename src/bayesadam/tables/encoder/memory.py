"""Checks of the available memory before it is allocated, since the kernel kills a process that exceeds it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


class NotEnoughMemory(MemoryError):
    """A request needs more memory than there is. The error is raised before anything is allocated."""


def available_memory() -> int | None:
    """Return the bytes that are available in the machine or the container; ``None`` if unknown."""
    limits = []
    with suppress(OSError, ValueError):  # a container without a limit has the text "max"
        limit, used = (int((_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        limits.append(max(limit - used, 0))
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(limits, default=None)


def require_memory(needed: float, what: str, advice: str = "use fewer rows or columns") -> None:
    """Raise an error if there is not enough memory.

    Args:
        needed: Number of bytes.
        what: The purpose, for the message.
        advice: How to use less memory, for the message.

    Raises:
        NotEnoughMemory: Less memory is available.
    """
    available = available_memory()
    if needed > (sys.maxsize if available is None else available):
        have = "more than there can be" if available is None else f"{_gigabytes(available)} are available"
        raise NotEnoughMemory(f"{what} would take {_gigabytes(needed)} of memory, {have}: {advice}")


def _gigabytes(number: float) -> str:
    return f"{number / 2**30:,.1f} GiB"
