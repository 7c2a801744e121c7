"""What happens in a worker process: one unit at a time, its progress written where the runner can read it."""

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
    """How far a unit is.

    Attributes:
        run: Which run wrote it.
        start: Fraction that was done before this run.
        fraction: Fraction that is done.
        note: From the experiment.
        seconds: Wall time, that of killed attempts included.
        cpu_seconds: Processor time, likewise.
    """

    run: str = ""
    start: float = 0.0
    fraction: float = 0.0
    note: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> State | None:
        """The last that was written there."""
        try:
            return cls(**json.loads((folder / "progress.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # removed meanwhile, or of another version
            return None

    def write(self, folder: Path) -> None:
        """Replace the last."""
        write_text(folder / "progress.json", json.dumps(asdict(self)))


class Meter:
    """``Context.progress``: writes the state at most twice a second. A value outside the range is clipped."""

    EVERY = 0.5

    def __init__(self, folder: Path, run: str) -> None:
        self.folder, self.run = folder, run
        self.past = State.read(folder) or State()
        self.began, self.cpu_began = time.perf_counter(), time.process_time()
        self.start, self.written = self.past.fraction, 0.0
        self._write(self.start, self.past.note)

    def __call__(self, done: float, total: float, note: str = "") -> None:
        """See :class:`experiments.Progress`."""
        fraction = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
        self.start = min(self.start, fraction)  # less, if the checkpoint was older than the last state, or none
        if time.perf_counter() - self.written >= self.EVERY:
            self._write(fraction, note)

    def seconds(self) -> tuple[float, float]:
        """Wall and processor time so far."""
        return (
            self.past.seconds + time.perf_counter() - self.began,
            self.past.cpu_seconds + time.process_time() - self.cpu_began,
        )

    def _write(self, fraction: float, note: str) -> None:
        State(self.run, self.start, fraction, note, *self.seconds()).write(self.folder)
        self.written = time.perf_counter()


@dataclass(frozen=True)
class Outcome:
    """How a unit ended, after how many seconds; where ``error`` is ``None``, its result has been written."""

    key: str
    seconds: float
    error: str | None = None
    not_finite: tuple[str, ...] = ()


def work(
    experiment: Experiment, unit: Unit, needed: Mapping[str, Result], store: Store, run: str, parent: int
) -> Outcome:
    """Do a unit; whatever goes wrong is told, never raised."""
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
    """Pass the time while the next unit waits for what it needs."""
    if os.getpid() != parent:
        _end_with_parent()
    time.sleep(0.1)


@cache
def _one_thread() -> None:
    """Workers share the cores: threads of one would only wait for those of the others."""
    import torch

    torch.set_num_threads(1)


@cache
def _keep_memory() -> None:
    """Freed memory stays with the process: to fault it in again costs more than what small networks compute in it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not the GNU C library
        return
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, its largest value


@cache
def _end_with_parent() -> None:
    """Nobody stops the workers of a runner that was killed, so each of them watches."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
