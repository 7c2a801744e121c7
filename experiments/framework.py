"""Units of work that run in parallel and can be interrupted, their results, and a page of tables and figures.

An experiment is a package of ``experiments`` with ``TITLE``, ``SOURCE``, ``units()``, ``run(unit, context)`` and
``report(results)``. Its finished results are committed in ``results.jsonl``, one line per unit; checkpoints are in
``runs/experiments/NAME/KEY``, which is removed when the unit is finished.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped,unused-ignore]
import pandas as pd
import torch
from filelock import FileLock, Timeout
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.tables import markdown

RUNS = Path("runs", "experiments").absolute()
"""Folder for checkpoints."""
BEGIN, END = "<!-- tables, written by `python -m experiments report` -->", "<!-- end of the tables -->"
"""The lines of a page between which the tables are written."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of glibc's ``mallopt`` for the sizes in bytes above which freed memory is given back to the system."""


@dataclass(frozen=True)
class Unit:
    """A piece of work that runs in one process and gives one result.

    Attributes:
        key: Name of the unit, which is unique in the experiment.
        config: Everything that determines the result, as JSON. If it changes, the unit is run again.
        optional: Whether the unit is run only on request, by the beginning of its key.
        phase: Units start after all units of earlier phases, whose results they may use.
    """

    key: str
    config: Mapping[str, Any]
    optional: bool = False
    phase: int = 0


Told = Callable[..., None]
"""Function of ``done``, ``total`` and a ``note`` that reports the progress of a unit; the note is shown by the bar."""


@dataclass(frozen=True)
class Context:
    """The objects that a unit receives.

    Attributes:
        folder: Folder of the unit for checkpoints, which remains if the process is killed.
        results: Results of the finished units, by key.
        progress: Function that reports the progress.
        memory: Cache for calls that take long. It is in ``folder``, so that an interrupted unit resumes after them.
    """

    folder: Path
    results: Mapping[str, Mapping[str, Any]]
    progress: Told
    memory: Any


@dataclass(frozen=True)
class Report:
    """Tables by title, and figures by name, which are saved as ``NAME.png``."""

    tables: Mapping[str, pd.DataFrame]
    figures: Mapping[str, Figure] = field(default_factory=dict)


def pick(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return some entries of a config, as options of a function."""
    return {name: config[name] for name in names}


def save(path: Path, state: Any) -> None:
    """Write a checkpoint with ``torch.save``. It is complete or not written, even if the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, temporary := path.with_name(f".tmp-{path.name}"))
    os.replace(temporary, path)


def folder_of(experiment: Any) -> Path:
    """Return the folder with an experiment's results and page."""
    return Path(experiment.__file__).parent


def finished(experiment: Any) -> dict[str, dict[str, Any]]:
    """Return the lines of ``results.jsonl`` with the units' current configs, by key in the order of the units."""
    path = folder_of(experiment) / "results.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
    found = {line["key"]: line for line in lines}
    keys = [unit.key for unit in experiment.units() if unit.key in found and found[unit.key]["config"] == unit.config]
    return {key: found[key] for key in keys}


def select(units: Sequence[Unit], only: Sequence[str]) -> list[Unit]:
    """Return the units whose keys contain one of the texts, or that are not optional if there are no texts.

    Raises:
        ValueError: A text is in no key.
    """

    def asked(unit: Unit, text: str) -> bool:
        return unit.key.startswith(text) if unit.optional else text in unit.key

    for text in only:
        if not any(asked(unit, text) for unit in units):
            raise ValueError(f"--only must be part of the key of a unit, got {text!r}")
    return [unit for unit in units if any(asked(unit, text) for text in only) or not (only or unit.optional)]


def run(name: str, *, jobs: int = -1, only: Sequence[str] = (), fresh: bool = False, runs: Path = RUNS) -> list[str]:
    """Run the units of the module ``name`` that are not finished, and return the keys of those that failed.

    Args:
        name: Name of the experiment's module.
        jobs: Number of units at a time; -1 stands for one per core.
        only: Texts that select units, see :func:`select`.
        fresh: Whether to forget what there is of the selected units, results and checkpoints, before they are run.
        runs: Folder for checkpoints.
    """
    experiment = import_module(name)
    units = select(experiment.units(), only)
    if fresh:
        _forget(experiment, units, runs / name)
    done = finished(experiment)
    left = [unit for unit in units if unit.key not in done]
    failed = []
    with _bar(name, runs, units, len(units) - len(left)) as ended:
        for phase in sorted({unit.phase for unit in left}):
            tasks = [joblib.delayed(work)(name, unit, runs, os.getpid()) for unit in left if unit.phase == phase]
            for key, seconds, error in joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(tasks):
                failed += [key] * bool(error)
                ended(f"{key} failed: {error}" if error else f"{key} finished in {seconds:.1f} s")
    return failed


def work(name: str, unit: Unit, runs: Path, parent: int) -> tuple[str, float, str]:
    """Run one unit, write its result, and return its key, its duration, and the last line of the error, if any."""
    if os.getpid() != parent and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C and stops the workers
    torch.set_num_threads(1)
    _keep_freed_memory()
    experiment, start = import_module(name), runs / name / unit.key
    folder = start / joblib.hash(unit.config)[:8]
    try:
        start.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{start}.lock", blocking=False):
            folder.mkdir(parents=True, exist_ok=True)
            meter = _Meter(start)
            results = {key: line["result"] for key, line in finished(experiment).items()}
            memory = joblib.Memory(folder / "memory", verbose=0)
            result = experiment.run(unit, Context(folder, results, meter, memory))
            seconds, cpu_seconds = meter.seconds()
            store(folder_of(experiment), runs / name, unit, result, seconds, cpu_seconds)
            shutil.rmtree(start, ignore_errors=True)
    except (Exception, SystemExit) as error:
        return unit.key, 0.0, traceback.format_exception_only(error)[-1].strip()
    return unit.key, seconds, ""


def _keep_freed_memory() -> None:
    """Keep freed memory in the process: for small networks, page faults would cost more than the computations."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # not with musl
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MMAP_THRESHOLD, 2**25)


def store(folder: Path, runs: Path, unit: Unit, result: Any, seconds: float, cpu_seconds: float) -> None:
    """Append a line to ``results.jsonl``, or replace the unit's line. Numbers that are not finite become ``null``."""
    packages = {name: version(name) for name in ("torch", "numpy", "bayesadam")}
    system = f"{platform.system()} {platform.machine()}"
    line = {
        "key": unit.key,
        "config": unit.config,
        "result": plain(result),
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "versions": {"python": platform.python_version(), **packages},
        "machine": {"platform": system, "processor": _processor(), "cpus": os.cpu_count()},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    text = json.dumps(line, allow_nan=False, ensure_ascii=False)
    with _lines(folder, runs) as lines:
        lines[unit.key] = text


def _forget(experiment: Any, units: Sequence[Unit], runs: Path) -> None:
    """Remove the results and the checkpoints of units, so that a run of them that is stopped can go on as any other."""
    runs.mkdir(parents=True, exist_ok=True)
    for unit in units:
        try:
            with FileLock(runs / f"{unit.key}.lock", blocking=False):
                shutil.rmtree(runs / unit.key, ignore_errors=True)
        except Timeout:
            raise ValueError(f"--fresh must be for units that are not running, got {unit.key!r}") from None
    with _lines(folder_of(experiment), runs) as lines:
        for unit in units:
            lines.pop(unit.key, None)


@contextmanager
def _lines(folder: Path, runs: Path) -> Iterator[dict[str, str]]:
    """Context with the lines of ``results.jsonl`` by key, which are written at its end."""
    path = folder / "results.jsonl"
    with FileLock(runs / "results.lock"):
        old = path.read_text("utf-8").splitlines() if path.is_file() else []
        lines = {json.loads(line)["key"]: line for line in old}
        yield lines
        temporary = path.with_name(f".tmp-{path.name}")
        temporary.write_text("".join(f"{line}\n" for line in lines.values()), "utf-8")
        os.replace(temporary, path)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def plain(value: Any) -> Any:
    """Convert arrays, tensors and mappings to JSON values. Numbers that are not finite become ``None``."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Meter:
    """The function ``Context.progress``, which writes the progress and the time so far to a file for the bar."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "progress.json"
        self.past = _progress(folder)
        self.began, self.cpu_began, self.written = time.perf_counter(), time.process_time(), 0.0

    def __call__(self, done: float, total: float, note: str = "") -> None:
        if time.perf_counter() > self.written + 0.5:
            seconds, cpu_seconds = self.seconds()
            state = {"share": done / total, "note": note, "seconds": seconds, "cpu_seconds": cpu_seconds}
            self.path.write_text(json.dumps(state), "utf-8")
            self.written = time.perf_counter()

    def seconds(self) -> tuple[float, float]:
        """Return the wall time and the processor time so far, including those of killed attempts."""
        wall, cpu = time.perf_counter() - self.began, time.process_time() - self.cpu_began
        return self.past.get("seconds", 0.0) + wall, self.past.get("cpu_seconds", 0.0) + cpu


def _progress(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "progress.json").read_text("utf-8"))
    except (FileNotFoundError, ValueError):  # the process is just writing it
        return {}
    return found


@contextmanager
def _bar(name: str, runs: Path, units: Sequence[Unit], done: int) -> Iterator[Callable[[str], None]]:
    """Context with a progress bar for all units, which counts the shares of those that run, and a function that is
    told when a unit has ended.
    """
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[units]}")]
    shown = (*columns, TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}", markup=False))
    stop, count = threading.Event(), {"ended": done}
    with Progress(*shown, console=Console(file=sys.stderr), speed_estimate_period=600.0) as progress:
        task = progress.add_task(name.rpartition(".")[2], total=len(units), units="", note="")

        def show() -> None:
            states = [_progress(runs / name / unit.key) for unit in units]
            completed = count["ended"] + sum(state.get("share", 0.0) for state in states)
            note = "; ".join(state["note"] for state in states if state.get("note"))
            progress.update(task, completed=completed, units=f"{count['ended']} of {len(units)} units", note=note)

        def watch() -> None:
            while not stop.wait(0.5):
                show()

        def ended(text: str) -> None:
            count["ended"] += 1
            progress.console.print(f"{datetime.now():%H:%M:%S} {text}", markup=False, highlight=False, soft_wrap=True)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield ended
            show()
        finally:
            stop.set()
            thread.join()


def page(experiment: Any) -> tuple[str, Report]:
    """Return the text of the experiment's ``README.md`` with new tables, and the report.

    Raises:
        ValueError: No unit is finished, or the page has no place for the tables.
    """
    lines = finished(experiment)
    if not lines:
        raise ValueError(f"{experiment.TITLE!r} must have finished units, got none: run it first")
    report: Report = experiment.report({key: line["result"] for key, line in lines.items()})
    required = [unit.key for unit in experiment.units() if not unit.optional]
    missing = [key for key in required if key not in lines]
    parts = [f"**{title}**\n\n{markdown(table)}" for title, table in report.tables.items() if len(table)]
    if missing:
        parts.insert(0, f"**Not finished**: results of {len(required) - len(missing)} of {len(required)} units.")
    text = (folder_of(experiment) / "README.md").read_text("utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"README.md must have one line {BEGIN!r} and one line {END!r}")
    before, _, rest = text.partition(BEGIN)
    return "\n\n".join([before + BEGIN, *parts, END]) + rest.partition(END)[2], report


def write(experiment: Any) -> Report:
    """Write the tables into the experiment's ``README.md``, and its figures."""
    text, report = page(experiment)
    (folder_of(experiment) / "README.md").write_text(text, "utf-8")
    for name, figure in report.figures.items():
        figure.savefig(folder_of(experiment) / f"{name}.png", dpi=150)
    return report
