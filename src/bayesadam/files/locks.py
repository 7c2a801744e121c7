"""Locks on open files, which the system releases when their process ends, however it ends."""

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
"""Whether the system has locks."""


def lock(descriptor: int, *, wait: bool) -> bool | None:
    """Lock an open file or folder until it is closed.

    Args:
        descriptor: Of the file.
        wait: Wait for another process that holds the lock.

    Returns:
        Whether this process holds the lock now; ``None`` where the system or the file system has no locks.
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
    """Hold the lock of a folder, which may be renamed meanwhile; gives whether another process holds it instead.

    A folder that is not there, or that cannot be locked, is nobody's.
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
