"""The base class of experiments, which consist of units of work with one result each and a report on the results."""

from __future__ import annotations

import inspect
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from experiments.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.results import Result


@dataclass(frozen=True)
class Unit:
    """A piece of work that runs in one process and gives one result.

    Attributes:
        key: Name of the result's file. It must be unique in the experiment, even if the case of letters is ignored.
        config: Everything that determines the result, as JSON. If it changes, the unit is run again.
        cost: Expected duration, on a scale that all units share. Expensive units start first, and the overall progress
            is weighted by the costs.
        needs: Keys of the units whose results this unit receives. If one of these results changes, the unit is run
            again.
        optional: Whether the unit is run only on request, by the beginning of its key. The experiment counts as
            finished without it.
    """

    key: str
    config: Mapping[str, Any] = field(default_factory=dict)
    cost: float = 1.0
    needs: tuple[str, ...] = ()
    optional: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.key):
            raise ValueError(f"key must be letters, digits, '.', '_' and '-', got {self.key!r}")
        if not 0 < self.cost < math.inf:
            raise ValueError(f"cost must be positive and finite, got {self.cost!r}")
        try:
            same = json.loads(json.dumps(self.config, allow_nan=False)).keys() == self.config.keys()
        except (TypeError, ValueError, AttributeError):
            same = False
        if not same:
            raise ValueError(f"config must be JSON (finite numbers, keys that are str), got {self.config!r}")


def seed_by_seed(choice: str, choices: Mapping[str, Any], seeds: int, protocol: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each choice and seed. The first seed of every choice comes first, so that the results of a
    stopped run can be compared.

    Args:
        choice: Name in the config for the name of the choice, such as ``"method"``. The config also has ``"settings"``
            and ``"seed"``.
        choices: Settings of each choice, by name.
        seeds: Number of seeds.
        protocol: Entries that the configs of all units share.
    """
    return [
        Unit(
            f"{name}-seed{seed}",
            {**protocol, choice: name, "settings": settings, "seed": seed},
            1.0 + 0.001 * (seeds - seed),
        )
        for seed in range(seeds)
        for name, settings in choices.items()
    ]


def in_order(units: Sequence[Unit]) -> list[Unit]:
    """Return the units in the given order, except that each unit comes after those that it needs.

    Raises:
        ValueError: Keys are not unique, a needed unit is missing, or units need each other in a circle.
    """
    keys = [unit.key for unit in units]
    for i, key in enumerate(keys):
        if key.lower() in (other.lower() for other in keys[:i]):
            raise ValueError(f"key must be unique, whatever the case of its letters, got {key!r} again")
    for unit in units:
        for key in unit.needs:
            if key not in keys:
                raise ValueError(f"needs of {unit.key!r} must be keys of units, got {key!r}")
    by_key = dict(zip(keys, units, strict=True))
    found: dict[str, Unit] = {}

    def visit(key: str, way: tuple[str, ...]) -> None:
        if key in way:
            raise ValueError(f"needs must not go in circles, got {' -> '.join((*way, key))}")
        for needed in by_key[key].needs if key not in found else ():
            visit(needed, (*way, key))
        found[key] = by_key[key]

    for key in keys:
        visit(key, ())
    return list(found.values())


class Progress(Protocol):
    """Function that reports the progress of a unit. It may be called often; ``note`` is shown after the bar."""

    def __call__(self, done: float, total: float, note: str = "") -> None: ...  # noqa: D102


@dataclass(frozen=True)
class Context:
    """The objects that a unit receives from the runner.

    Attributes:
        folder: Folder of the unit for checkpoints. Since it remains after a killed run, a unit should first look for a
            checkpoint there. The folder is emptied when the config changes, and removed when the unit is finished.
            Files should be written with ``replacing``, because the process may be killed at any time.
        results: Results of the units that this unit needs, by key.
        progress: Function to report the progress; see :class:`Progress`.
    """

    folder: Path
    results: Mapping[str, Mapping[str, Any]]
    progress: Progress


@dataclass(frozen=True)
class Report:
    """The contents of an experiment's page.

    Attributes:
        tables: Tables, in the order of the page.
        figures: Figures by name, which are saved as ``NAME.png``.
        notes: Text in Markdown on the differences from the paper and the interpretation of the numbers.
    """

    tables: Sequence[Table] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: str = ""


class Experiment(ABC):
    """A published table or figure. Instances must be picklable, as they are sent to worker processes.

    Attributes:
        name: Name on the command line, such as "uci-table1".
        title: Title in one line.
        source: Citation with the number of the table or figure.
    """

    name: str
    title: str
    source: str

    @property
    def folder(self) -> Path:
        """Folder for results, tables and figures, which is that of the module with the class."""
        return Path(inspect.getfile(type(self))).parent

    @abstractmethod
    def units(self) -> list[Unit]:
        """Return all units."""

    @abstractmethod
    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Run one unit, in a process that runs one unit at a time.

        Returns:
            The result, which is saved as JSON. Arrays and tensors become lists, and numbers that are not finite become
            ``None``.
        """

    @abstractmethod
    def report(self, results: Mapping[str, Result]) -> Report:
        """Return tables and figures from the results of the finished units, by key. Some units may be missing."""
