"""The tasks of ``benchmarks/defaults.py``, by name. A further one is a :class:`Task` in a list here."""

from __future__ import annotations

from default_tasks import images, lora, pixels, ratings, sets, tables, text
from default_tasks.task import Data as Data
from default_tasks.task import Task as Task
from default_tasks.task import positions as positions

TASKS = {task.name: task for task in (*images.TASKS, *text.TASKS, *lora.TASKS, *tables.TASKS, *pixels.TASKS, *sets.TASKS, *ratings.TASKS)}
"""What is run by default."""
FURTHER = {task.name: task for task in (*images.FURTHER, *tables.FURTHER)}
"""What is run on request."""
ALL = TASKS | FURTHER
