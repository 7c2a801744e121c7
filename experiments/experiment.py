"""What an experiment is: units of work, each with one result, and a report made of the results."""

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
        key: Name of the result's file; unique in the experiment whatever the case of its letters.
        config: Everything that determines the result, as JSON; when it changes, the unit is done anew.
        cost: Expected time in any scale common to the units: expensive ones start first, and the overall bar is
            weighted by it.
        needs: Keys of the units whose results this one is handed; done anew when one of those results changes.
        optional: Run only if it is asked for by the beginning of its key; the experiment is finished without it.
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
    """Units of all choices and seeds, the first seed of every choice first: a run that is stopped can be compared.

    Args:
        choice: What is chosen, ``"method"`` say; its name in the config, beside ``"settings"`` and ``"seed"``.
        choices: Settings by name.
        seeds: Number of seeds.
        protocol: What all units have in their config.
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
    """The units, each after those that it needs, otherwise as given.

    Raises:
        ValueError: Keys are not unique; a needed unit is missing; units need each other.
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
    """Says how much of a unit is done, as often as one likes; ``note`` is shown behind the bar."""

    def __call__(self, done: float, total: float, note: str = "") -> None: ...  # noqa: D102


@dataclass(frozen=True)
class Context:
    """What a unit gets from the runner.

    Attributes:
        folder: The unit's own, for checkpoints. It outlives a killed run, so a unit looks here first; it is emptied
            when the config changes and removed when the unit is finished. Write with ``replacing``: a kill may come at
            any time.
        results: Results of the units that it needs.
        progress: See :class:`Progress`.
    """

    folder: Path
    results: Mapping[str, Mapping[str, Any]]
    progress: Progress


@dataclass(frozen=True)
class Report:
    """What an experiment shows.

    Attributes:
        tables: In this order.
        figures: Saved as ``NAME.png``.
        notes: Markdown: where we depart from the paper, and what to make of the numbers.
    """

    tables: Sequence[Table] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: str = ""


class Experiment(ABC):
    """A published table or figure. Instances are sent to worker processes, so they must pickle.

    Attributes:
        name: On the command line, "uci-table1".
        title: One line.
        source: Citation with the number of the table or figure.
    """

    name: str
    title: str
    source: str

    @property
    def folder(self) -> Path:
        """Where results, tables and figures go: that of the module with the class."""
        return Path(inspect.getfile(type(self))).parent

    @abstractmethod
    def units(self) -> list[Unit]:
        """All the work."""

    @abstractmethod
    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Do one unit, in a process that does one at a time.

        Returns:
            What to keep, as JSON. Arrays and tensors become lists; a number that is not finite becomes ``None``.
        """

    @abstractmethod
    def report(self, results: Mapping[str, Result]) -> Report:
        """Tables and figures from the results of the finished units, by key. Some units may be missing."""
