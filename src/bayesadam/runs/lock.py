"""The lock of a folder in which a run is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Context that holds the lock of a folder, which may be renamed inside; it gives whether another process holds it.

    The lock is a file beside the folder. A folder that does not exist counts as not locked.
    """
    if not folder.is_dir():
        yield False
        return
    lock = filelock.FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield True
        return
    try:
        yield False
    finally:
        with suppress(OSError):  # Windows removes no open file
            os.unlink(lock.lock_file)
        lock.release()
