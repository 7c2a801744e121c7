"""Finished units, one JSON line each, in a file per task: what was interrupted goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from default_tasks import Task

Key = tuple[str, int, str]
"""Task, seed, method."""


def read(folder: Path, task: Task) -> dict[Key, dict[str, Any]]:
    """The last record of every finished unit of a task, if it was trained as the task is now."""
    path = folder / f"{task.name}.jsonl"
    records = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return {(task.name, one["seed"], one["method"]): one for one in records if one["trained"] == trained(task)}


def write(folder: Path, task: Task, seed: int, method: str, record: dict[str, Any]) -> dict[str, Any]:
    """Append a record, and return it as it will be read."""
    record = {"seed": seed, "method": method, "trained": trained(task), **record}
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{task.name}.jsonl", "a") as file:
        file.write(json.dumps(record) + "\n")
    return record


def trained(task: Task) -> list[int | None]:
    """Examples, epochs and batch size."""
    return [task.size, task.epochs, task.batch_size]
