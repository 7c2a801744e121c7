"""Results of finished units as JSON files, which are committed, and checkpoints of other units, which are not."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from experiments.experiment import Experiment, Unit
from experiments.files import write_text

RUNS = Path("runs", "experiments")
"""Folder of the checkpoints, relative to the root of the repository."""


@dataclass(frozen=True)
class Result:
    """The contents of a file in ``results``.

    Attributes:
        experiment: Name of the experiment.
        unit: Key of the unit.
        config: Config of the unit.
        needs: Digests of the results that the unit received, by key.
        result: What the unit returned.
        seconds: Wall time, including that of killed attempts.
        cpu_seconds: Processor time of all threads, including that of killed attempts.
        versions: Versions of Python and the packages that influence the numbers.
        machine: Platform, processor and number of cores.
        finished: Date and time of the end, in UTC.
    """

    experiment: str
    unit: str
    config: Mapping[str, Any]
    needs: Mapping[str, str]
    result: Mapping[str, Any]
    seconds: float
    cpu_seconds: float
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    finished: str


@dataclass(frozen=True)
class Store:
    """The files of one experiment."""

    experiment: str
    results: Path
    runs: Path

    @classmethod
    def of(cls, experiment: Experiment, runs: Path = RUNS) -> Store:
        """Return the store of an experiment: its own folder for the results, and ``runs`` for other files."""
        return cls(experiment.name, experiment.folder / "results", runs.absolute() / experiment.name)

    def folder(self, key: str) -> Path:
        """Return the unit's folder for checkpoints."""
        return self.runs / key

    def open_folder(self, unit: Unit, needed: Mapping[str, Result]) -> Path:
        """Return the unit's folder. It is emptied first if its contents belong to another config."""
        folder, mark = self.folder(unit.key), json.dumps(_inputs(unit, needed), sort_keys=True)
        known = folder / "unit.json"
        if not known.is_file() or known.read_text(encoding="utf-8") != mark:
            shutil.rmtree(folder, ignore_errors=True)
            write_text(known, mark)
        return folder

    def load(self, unit: Unit, needed: Mapping[str, Result]) -> Result | None:
        """Return the unit's result, or ``None`` if there is no result for this config and these needed results.

        Raises:
            ValueError: The file is not the result of a unit.
        """
        path = self.results / f"{unit.key}.json"
        if not path.is_file():
            return None
        try:
            result = Result(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{os.path.relpath(path)} must be the result of a unit, got {error}") from error
        return result if _same({"config": result.config, "needs": result.needs}, _inputs(unit, needed)) else None

    def save(
        self, unit: Unit, needed: Mapping[str, Result], result: Mapping[str, Any], seconds: float, cpu_seconds: float
    ) -> list[str]:
        """Write the result, with which the unit is finished.

        Returns:
            Places in the result where ``null`` replaces a number that is not finite, such as ``["loss", "curve[3]"]``.

        Raises:
            TypeError: The result is not JSON; nothing has been written.
        """
        if not isinstance(result, Mapping):
            raise TypeError(f"result must be a dict, got {result!r}")
        lost: list[str] = []
        found = Result(
            experiment=self.experiment,
            unit=unit.key,
            **_inputs(unit, needed),
            result=_plain(result, "", lost),
            seconds=round(seconds, 3),
            cpu_seconds=round(cpu_seconds, 3),
            versions=versions(),
            machine=machine(),
            finished=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        write_text(self.results / f"{unit.key}.json", dumps(asdict(found)) + "\n")
        return lost

    def forget(self, key: str) -> None:
        """Delete the result and the checkpoints of a unit."""
        (self.results / f"{key}.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder(key), ignore_errors=True)


def finished(units: Sequence[Unit], store: Store) -> dict[str, Result]:
    """Return the results of the finished units in the given order, in which needed units must come first."""
    results: dict[str, Result] = {}
    for unit in units:
        if results.keys() >= set(unit.needs) and (found := store.load(unit, results)) is not None:
            results[unit.key] = found
    return results


def counted(units: Sequence[Unit], results: Mapping[str, Result]) -> tuple[int, int]:
    """Return the number of finished units and the number of all units, both without optional units."""
    keys = [unit.key for unit in units if not unit.optional]
    return sum(key in results for key in keys), len(keys)


def dumps(value: Any, indent: int = 0) -> str:
    """Return strict JSON that is easy to compare line by line. A list of numbers is on one line."""
    start, end = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(value, Mapping) and value:
        items = [f"{json.dumps(key)}: {dumps(item, indent + 1)}" for key, item in value.items()]
        return "{" + ",".join(start + item for item in items) + end + "}"
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        return "[" + ",".join(start + dumps(item, indent + 1) for item in value) + end + "]"
    return json.dumps(value, allow_nan=False)


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that influence the numbers."""
    return {"python": platform.python_version(), **dict(_installed("torch", "numpy", "bayesadam"))}


@cache
def machine() -> dict[str, Any]:
    """Return a description of the machine, on which the wall time depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": model or platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
    }


def _installed(*packages: str) -> Iterator[tuple[str, str]]:
    for package in packages:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            pass


def _inputs(unit: Unit, needed: Mapping[str, Result]) -> dict[str, Any]:
    """Return everything that a result depends on."""
    return {"config": unit.config, "needs": {key: _digest(needed[key]) for key in unit.needs}}


def _digest(result: Result) -> str:
    return hashlib.sha256(json.dumps(result.result, sort_keys=True).encode()).hexdigest()[:16]


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _plain(value: Any, where: str, lost: list[str]) -> Any:
    """Convert a value to JSON values, and add the places of numbers that are not finite to ``lost``."""
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars
        value = value.tolist()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"keys of result must be str, got {key!r} in {where or 'result'}")
        return {key: _plain(item, f"{where}.{key}" if where else key, lost) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", lost) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(where)
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"result must be JSON, got {value!r} in {where}")
