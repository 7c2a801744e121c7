"""How much memory there is, asked before it is taken: the kernel ends a process that finds out too late."""

from __future__ import annotations

import sys
from pathlib import Path

_LIMITS = {
    "/sys/fs/cgroup/memory.max": "/sys/fs/cgroup/memory.current",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "/sys/fs/cgroup/memory/memory.usage_in_bytes",
}


class NotEnoughMemory(MemoryError):
    """What is asked for does not fit; raised before anything is allocated."""


def available_memory() -> int | None:
    """Bytes that can be had without pushing something else out: of the machine or the container; ``None``: unknown."""
    found = [_room(Path(limit), Path(used)) for limit, used in _LIMITS.items()]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    known = [room for room in found if room is not None]
    return min(known) if known else None


def require_memory(needed: float, what: str, advice: str) -> None:
    """Refuse what does not fit.

    Args:
        needed: Bytes.
        what: What they are for.
        advice: What would take less.

    Raises:
        NotEnoughMemory: There is less.
    """
    available = available_memory()
    if needed > (sys.maxsize if available is None else available):
        have = "more than there can be" if available is None else f"{_gigabytes(available)} are available"
        raise NotEnoughMemory(f"{what} would take {_gigabytes(needed)} of memory, {have}: {advice}")


def _room(limit: Path, used: Path) -> int | None:
    """Of a control group; ``None`` where there is no limit."""
    try:
        return max(int(limit.read_text()) - int(used.read_text()), 0)
    except (OSError, ValueError):
        return None


def _gigabytes(number: float) -> str:
    return f"{number / 2**30:,.1f} GiB"
