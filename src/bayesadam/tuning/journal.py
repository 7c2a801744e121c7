"""Optuna's journal as a file that survives full disks and killed processes."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from bayesadam.files import lock

_TAIL = 4096
"""Number of bytes at the end of the file that are read first."""


class Journal(JournalFileBackend):
    """A journal whose last line is dropped before the next write if it is incomplete.

    Optuna's own journal cannot be read when an incomplete line is followed by another one.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: str) -> None:
        self._path, self._whose = path, _Lock(path)
        super().__init__(path, self._whose)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write lines, either all of them or none."""
        content = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        self._whose.acquire()
        try:
            drop_torn_line(self._path)
            with open(self._path, "ab", buffering=0) as file:
                end = os.fstat(file.fileno()).st_size
                try:
                    if file.write(content) != len(content):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
                    os.fsync(file.fileno())
                except BaseException:
                    with suppress(OSError):
                        file.truncate(end)
                    raise
        finally:
            self._whose.release()


class _Lock(JournalFileOpenLock):
    """A lock that is released when its process ends. If the file system does not support such locks, Optuna's own lock
    is used, which another process can take after half a minute.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._path, self._held = path, -1

    def acquire(self) -> bool:
        """Wait for the lock and take it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            held = lock(descriptor, wait=True)
        except BaseException:
            os.close(descriptor)
            raise
        if held:
            self._held = descriptor
            return True
        os.close(descriptor)
        return super().acquire()

    def release(self) -> None:
        """Release the lock."""
        descriptor, self._held = self._held, -1
        if descriptor >= 0:
            os.close(descriptor)
        else:
            super().release()


def drop_torn_line(path: str) -> None:
    """Cut a journal off after its last complete line, since a full disk or a power failure may have left part of
    another.
    """
    with open(path, "rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            line = _last_line(file, end)
            if line.endswith(b"\n") and _is_record(line):
                break
            end -= len(line)
        if end < size:
            file.truncate(end)
            os.fsync(file.fileno())


def _last_line(file: Any, end: int) -> bytes:
    """Return the last line among the first ``end`` bytes."""
    length = _TAIL
    while True:
        begin = max(0, end - length)
        file.seek(begin)
        tail: bytes = file.read(end - begin)
        before = tail.rfind(b"\n", 0, -1)
        if before >= 0 or begin == 0:
            return tail[before + 1 :]
        length *= 2


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
