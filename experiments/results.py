"""Results: a JSON file for each finished unit, committed; and checkpoints of the others, which are not."""

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
"""Where the checkpoints are, from the repository root."""


@dataclass(frozen=True)
class Result:
    """What a file in ``results`` says.

    Attributes:
        experiment: Name.
        unit: Key.
        config: The unit's.
        needs: Digests of the results that were handed to the unit, by key.
        result: What the unit returned.
        seconds: Wall time, that of killed attempts included.
        cpu_seconds: Processor time of all threads, likewise.
        versions: Of Python and the packages that matter.
        machine: Platform, processor and number of cores.
        finished: Date and time, UTC.
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
    """Where the files of one experiment are."""

    experiment: str
    results: Path
    runs: Path

    @classmethod
    def of(cls, experiment: Experiment, runs: Path = RUNS) -> Store:
        """The experiment's own folder for results; ``runs`` for the rest."""
        return cls(experiment.name, experiment.folder / "results", runs.absolute() / experiment.name)

    def folder(self, key: str) -> Path:
        """The unit's folder for checkpoints."""
        return self.runs / key

    def open_folder(self, unit: Unit, needed: Mapping[str, Result]) -> Path:
        """The unit's folder, emptied if it was left by another config."""
        folder, mark = self.folder(unit.key), json.dumps(_inputs(unit, needed), sort_keys=True)
        known = folder / "unit.json"
        if not known.is_file() or known.read_text(encoding="utf-8") != mark:
            shutil.rmtree(folder, ignore_errors=True)
            write_text(known, mark)
        return folder

    def load(self, unit: Unit, needed: Mapping[str, Result]) -> Result | None:
        """The unit's result, or ``None`` where there is none of the same config and needs.

        Raises:
            ValueError: The file is not one that was written here.
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
        """Write the result; the unit is finished then.

        Returns:
            Where in the result ``null`` stands for a number that is not finite: ``["loss", "curve[3]"]``.

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
        """Remove what there is of a unit."""
        (self.results / f"{key}.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder(key), ignore_errors=True)


def finished(units: Sequence[Unit], store: Store) -> dict[str, Result]:
    """Results of the finished units, in the order of ``units``, in which needed ones must come first."""
    results: dict[str, Result] = {}
    for unit in units:
        if results.keys() >= set(unit.needs) and (found := store.load(unit, results)) is not None:
            results[unit.key] = found
    return results


def counted(units: Sequence[Unit], results: Mapping[str, Result]) -> tuple[int, int]:
    """How many units are finished, and how many there are: optional ones are not counted."""
    keys = [unit.key for unit in units if not unit.optional]
    return sum(key in results for key in keys), len(keys)


def dumps(value: Any, indent: int = 0) -> str:
    """Strict JSON that is easy to compare line by line, yet has a list of numbers on one line."""
    start, end = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(value, Mapping) and value:
        items = [f"{json.dumps(key)}: {dumps(item, indent + 1)}" for key, item in value.items()]
        return "{" + ",".join(start + item for item in items) + end + "}"
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        return "[" + ",".join(start + dumps(item, indent + 1) for item in value) + end + "]"
    return json.dumps(value, allow_nan=False)


@cache
def versions() -> dict[str, str]:
    """Of Python and the packages that determine numbers."""
    return {"python": platform.python_version(), **dict(_installed("torch", "numpy", "bayesadam"))}


@cache
def machine() -> dict[str, Any]:
    """What the wall time depends on."""
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
    """All that a result depends on."""
    return {"config": unit.config, "needs": {key: _digest(needed[key]) for key in unit.needs}}


def _digest(result: Result) -> str:
    return hashlib.sha256(json.dumps(result.result, sort_keys=True).encode()).hexdigest()[:16]


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _plain(value: Any, where: str, lost: list[str]) -> Any:
    """JSON of a value; the places of numbers that are not finite go to ``lost``."""
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
