"""Locks on open files, which the system releases when their process ends for any reason."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

fcntl: Any
try:
    fcntl = import_module("fcntl")
except ImportError:  # Windows
    fcntl = None
THERE = fcntl is not None
"""Whether the system has file locks."""


def lock(descriptor: int, *, wait: bool) -> bool | None:
    """Lock an open file or folder until it is closed.

    Args:
        descriptor: File descriptor.
        wait: Whether to wait for another process that holds the lock.

    Returns:
        Whether this process holds the lock now; ``None`` if the system or the file system has no locks.
    """
    if not THERE:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Context that holds the lock of a folder, which may be renamed inside; it gives whether another process holds it.

    A folder that does not exist, or cannot be locked, counts as not locked.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        yield lock(descriptor, wait=False) is False
    finally:
        os.close(descriptor)
