"""Checks of the available memory before it is allocated, since the kernel kills a process that exceeds it."""

from __future__ import annotations

import sys
from pathlib import Path

_LIMITS = {
    "/sys/fs/cgroup/memory.max": "/sys/fs/cgroup/memory.current",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "/sys/fs/cgroup/memory/memory.usage_in_bytes",
}


class NotEnoughMemory(MemoryError):
    """A request needs more memory than there is. The error is raised before anything is allocated."""


def available_memory() -> int | None:
    """Return the bytes that are available in the machine or the container; ``None`` if unknown."""
    found = [_room(Path(limit), Path(used)) for limit, used in _LIMITS.items()]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    known = [room for room in found if room is not None]
    return min(known) if known else None


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


def _room(limit: Path, used: Path) -> int | None:
    """Return the free memory of a control group; ``None`` without a limit."""
    try:
        return max(int(limit.read_text()) - int(used.read_text()), 0)
    except (OSError, ValueError):
        return None


def _gigabytes(number: float) -> str:
    return f"{number / 2**30:,.1f} GiB"
