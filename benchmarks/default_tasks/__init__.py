"""The tasks of ``benchmarks/defaults.py``, by name. A further one is a :class:`Task` in a list here."""

from __future__ import annotations

from default_tasks import deep, further, images, lora, made_up, pixels, ratings, sets, tables, text
from default_tasks.task import Data as Data
from default_tasks.task import Task as Task
from default_tasks.task import positions as positions

_MODULES = (made_up, tables, ratings, images, sets, text, lora, pixels, deep)
TASKS = {task.name: task for module in _MODULES for task in module.TASKS}
"""What defaults are developed on."""
FURTHER = {task.name: task for task in further.TASKS}
"""What is not trained on before everything is chosen."""
