"""The journal: every trial of every method, one JSON line each, in a file per method; nothing is ever removed."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from default_tasks import Task

TRIALS = Path(__file__).parent / "trials"
"""In the repository: it says how often something was chosen on the development tasks."""
Key = tuple[str, int]
"""Task and seed."""
Records = dict[Key, dict[str, Any]]


def read(folder: Path, method: str, tasks: list[Task]) -> Records:
    """The last record of a method on every task and seed, if the task was as it is now."""
    path, trained = folder / f"{method}.jsonl", {task.name: description(task) for task in tasks}
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return {(one["task"], one["seed"]): one for one in lines if trained.get(one["task"]) == one["trained"]}


def write(folder: Path, method: str, task: Task, seed: int, record: dict[str, Any]) -> dict[str, Any]:
    """Append a record, and return it as it will be read."""
    when = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": _commit()}
    line = json.dumps({"task": task.name, "seed": seed, "trained": description(task), **rounded(record), **when})
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{method}.jsonl", "a") as file:
        file.write(line + "\n")
    return dict(json.loads(line))


def description(task: Task) -> list[int | None]:
    """Examples, epochs and batch size."""
    return [task.size, task.epochs, task.batch_size]


def rounded(value: Any) -> Any:
    """Six digits: records stay small."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _commit() -> str:
    """The commit of the repository, with a mark if files that it tracks were changed."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
