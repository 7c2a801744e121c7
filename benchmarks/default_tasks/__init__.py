"""The tasks of ``benchmarks/defaults.py``, by name. A further one is a :class:`Task` in a list here."""

from __future__ import annotations

from default_tasks import images, lora, pixels, ratings, sets, tables, text
from default_tasks.task import Data as Data
from default_tasks.task import Task as Task
from default_tasks.task import positions as positions

_MODULES = (images, text, lora, tables, pixels, sets, ratings)
TASKS = {task.name: task for module in _MODULES for task in module.TASKS}
