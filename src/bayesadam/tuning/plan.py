"""The arguments of a search, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage

from bayesadam.checks import check, is_whole

Direction = Literal["maximize", "minimize"]
Storage = str | os.PathLike[str] | BaseStorage | None


@dataclass(frozen=True)
class Candidate:
    """Hyper-parameters to evaluate in round ``number`` of the study called ``name``, at position ``study``."""

    study: int
    name: str
    number: int
    params: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """The arguments of ``tune`` after checks; they are pickled for other processes."""

    objective: Callable[[list[Candidate]], Sequence[float]]
    space: Mapping[str, BaseDistribution]
    studies: Sequence[str]
    rounds: int
    startup: int
    direction: Direction
    storage: Storage
    sampler: Callable[[int], BaseSampler] | None
    seed: int
    jobs: int

    def __post_init__(self) -> None:
        check("space", self.space, "a mapping of at least one name to an Optuna distribution", _is_space)
        check("studies", self.studies, "at least one name, each once", _is_names)
        for name, least in (("rounds", 1), ("startup", 0), ("jobs", 1)):
            value = getattr(self, name)
            check(name, value, f"a whole number of at least {least}", partial(is_whole, least=least))
        if self.direction not in ("maximize", "minimize"):
            raise ValueError(f"direction must be 'maximize' or 'minimize', got {self.direction!r}")
        if not _is_storage(self.storage):
            rule = "None, a path in a folder that exists, a URL or an Optuna storage"
            raise ValueError(f"storage must be {rule}, got {self.storage!r}")
        check("sampler", self.sampler, "None or a function of a seed", lambda v: v is None or callable(v))
        check("seed", self.seed, "an integer in [0, 2**64)", lambda v: is_whole(v, 0) and v < 2**64)
        if self.jobs > 1 and (self.storage is None or isinstance(self.storage, BaseStorage)):
            raise ValueError(f"storage must be a path or a URL if jobs > 1, got {self.storage!r}")
        if self.jobs > 1 and find_spec("joblib") is None:
            raise ImportError('jobs > 1 needs joblib: pip install "bayesadam[tune]"')


def _is_space(value: Any) -> bool:
    return isinstance(value, Mapping) and {isinstance(v, BaseDistribution) for v in value.values()} == {True}


def _is_names(value: Any) -> bool:
    return 0 < len(value) == len(set(value)) and all(isinstance(name, str) for name in value)


def is_url(storage: Any) -> bool:
    """Whether a storage is a database by its URL."""
    return isinstance(storage, str) and "://" in storage


def _is_storage(value: Any) -> bool:
    if isinstance(value, str | os.PathLike) and not is_url(value):
        return Path(value).parent.is_dir() and not Path(value).is_dir()
    return value is None or isinstance(value, BaseStorage) or is_url(value)
