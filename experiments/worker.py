"""The work of a worker process: it runs one unit at a time and writes the progress to a file for the runner."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from experiments.experiment import Context, Experiment, Unit
from experiments.files import write_text
from experiments.results import Result, Store


@dataclass(frozen=True)
class State:
    """The progress of a unit.

    Attributes:
        run: Name of the run that wrote it.
        start: Share of the unit that was done before this run.
        fraction: Share of the unit that is done.
        note: Note of the experiment.
        seconds: Wall time, including that of killed attempts.
        cpu_seconds: Processor time, including that of killed attempts.
    """

    run: str = ""
    start: float = 0.0
    fraction: float = 0.0
    note: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> State | None:
        """Return the last state that was written to a folder, or ``None`` if there is none."""
        try:
            return cls(**json.loads((folder / "progress.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # the file was removed, or another version wrote it
            return None

    def write(self, folder: Path) -> None:
        """Write the state to a folder, and replace the last one."""
        write_text(folder / "progress.json", json.dumps(asdict(self)))


class Meter:
    """The function ``Context.progress``. It writes the state at most twice a second, and clips values."""

    EVERY = 0.5

    def __init__(self, folder: Path, run: str) -> None:
        self.folder, self.run = folder, run
        self.past = State.read(folder) or State()
        self.began, self.cpu_began = time.perf_counter(), time.process_time()
        self.start, self.written = self.past.fraction, 0.0
        self._write(self.start, self.past.note)

    def __call__(self, done: float, total: float, note: str = "") -> None:
        """Report the progress; see :class:`experiments.Progress`."""
        fraction = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
        self.start = min(self.start, fraction)  # smaller if the checkpoint is older than the last state or missing
        if time.perf_counter() - self.written >= self.EVERY:
            self._write(fraction, note)

    def seconds(self) -> tuple[float, float]:
        """Return the wall time and the processor time so far."""
        return (
            self.past.seconds + time.perf_counter() - self.began,
            self.past.cpu_seconds + time.process_time() - self.cpu_began,
        )

    def _write(self, fraction: float, note: str) -> None:
        State(self.run, self.start, fraction, note, *self.seconds()).write(self.folder)
        self.written = time.perf_counter()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a unit and its duration in seconds. If ``error`` is ``None``, its result has been written."""

    key: str
    seconds: float
    error: str | None = None
    not_finite: tuple[str, ...] = ()


def work(
    experiment: Experiment, unit: Unit, needed: Mapping[str, Result], store: Store, run: str, parent: int
) -> Outcome:
    """Run a unit. Errors are returned in the outcome and never raised."""
    if os.getpid() != parent:
        _end_with_parent()
        _one_thread()
        _keep_memory()
    folder, began = store.folder(unit.key), time.perf_counter()
    try:
        folder = store.open_folder(unit, needed)
        (folder / "error.txt").unlink(missing_ok=True)
        meter = Meter(folder, run)
        context = Context(folder, {key: result.result for key, result in needed.items()}, meter)
        result = experiment.run(unit, context)
        not_finite = store.save(unit, needed, result, *meter.seconds())
    except (Exception, SystemExit) as error:
        write_text(folder / "error.txt", traceback.format_exc())
        message = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        return Outcome(unit.key, time.perf_counter() - began, message.removesuffix(": "))
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(unit.key, time.perf_counter() - began, not_finite=tuple(not_finite))


def idle(parent: int) -> None:
    """Wait a moment, as the waiting units need results that do not exist yet."""
    if os.getpid() != parent:
        _end_with_parent()
    time.sleep(0.1)


@cache
def _one_thread() -> None:
    """Use one thread, as the workers share the cores and more threads would only wait for each other."""
    import torch

    torch.set_num_threads(1)


@cache
def _keep_memory() -> None:
    """Keep freed memory in the process: for small networks, page faults would cost more time than the computations."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not the GNU C library
        return
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, its largest value


@cache
def _end_with_parent() -> None:
    """Start a thread that ends this process when its parent ends, since a killed runner cannot do so."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
