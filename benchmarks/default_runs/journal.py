"""Finished units, one JSON line each, in a file per task: what was interrupted goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from default_tasks import Task

Key = tuple[str, int, str]
"""Task, seed, method."""


class Journal:
    """The records of a folder.

    A record counts for a task as it is now: with another number of examples, epochs or another batch size it is not
    seen.

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
            record = json.loads(line)
            if record["trained"] == trained(task):
                found[task.name, record["seed"], record["method"]] = record
        return found

    def write(self, task: Task, seed: int, method: str, record: dict[str, Any]) -> dict[str, Any]:
        """Append a record, and return it as it will be read."""
        record = {"seed": seed, "method": method, "trained": trained(task), **record}
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / f"{task.name}.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
        return record


def trained(task: Task) -> list[int | None]:
    """Examples, epochs and batch size."""
    return [task.size, task.epochs, task.batch_size]
