"""Finished units, one JSON line each, in a file per task: what was interrupted goes on where it was."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import bayesadam as ba
from default_tasks import Task

Key = tuple[str, int, str]
"""Task, seed, method."""


class Journal:
    """The records of a folder.

    A record counts for a task as it is now: with another number of examples, epochs or another batch size it is not
    seen. That the library was another one is only told, by :func:`outdated`.

    Args:
        folder: Made when the first record is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, task: Task) -> dict[Key, dict[str, Any]]:
        """The last record of every finished unit of a task."""
        path = self.folder / f"{task.name}.jsonl"
        found: dict[Key, dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:  # the end of a line that was being written when the machine stopped
                continue
            if record["trained"] == trained(task):
                found[task.name, record["seed"], record["method"]] = record
        return found

    def write(self, task: Task, seed: int, method: str, record: dict[str, Any]) -> dict[str, Any]:
        """Append a record, and return it as it will be read."""
        head = {"seed": seed, "method": method, "trained": trained(task)}
        code = {} if method == "adam" else {"code": fingerprint()}
        record = {**head, **code, **record}
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / f"{task.name}.jsonl", "a+b") as file:
            torn = file.tell() and _last_byte(file) != b"\n"
            file.write((b"\n" if torn else b"") + json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return record


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    return bytes(file.read(1))


def trained(task: Task) -> list[int | None]:
    """Examples, epochs and batch size."""
    return [task.size, task.epochs, task.batch_size]


def fingerprint() -> int:
    """Of the code of our optimisers: it tells records of another version."""
    folder = Path(ba.__file__).parent
    files = sorted(path for part in ("optim", "core") for path in (folder / part).glob("*.py"))
    return zlib.crc32(b"".join(path.read_bytes() for path in files))


def outdated(records: dict[Key, dict[str, Any]]) -> list[Key]:
    """Units of ours that another version of the optimisers did."""
    now = fingerprint()
    return [key for key, record in records.items() if record.get("code", now) != now]
