"""Runs the units of an experiment in parallel processes. Finished units are kept, and a stopped run can be resumed."""

from __future__ import annotations

import os
import signal
import threading
import uuid
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.display import Watch, screen
from experiments.experiment import Experiment, Unit, in_order
from experiments.results import RUNS, Store, counted, finished
from experiments.schedule import Schedule
from experiments.worker import Outcome, idle, work


@dataclass(frozen=True)
class Summary:
    """The outcome of a run.

    Attributes:
        finished: Number of finished units of the experiment.
        units: Number of all units.
        failed: Error messages of the units that failed, by key.
        not_finite: Places in results of this run where ``null`` replaces a number that is not finite, by key.
    """

    finished: int
    units: int
    failed: dict[str, str]
    not_finite: dict[str, tuple[str, ...]]


def run(
    experiment: Experiment,
    *,
    jobs: int | None = None,
    only: Sequence[str] = (),
    fresh: bool = False,
    runs: Path = RUNS,
) -> Summary:
    """Run the units that are not finished.

    Args:
        experiment: Experiment whose units are run in worker processes, or in this process if there is only one job.
        jobs: Number of units that run at the same time; -1 stands for one per core. With ``None``, it is the number
            that ``joblib.parallel_config`` sets, or 1. The backend is the one that ``joblib.parallel_config`` sets, or
            loky. Backends on other machines need access to the same files.
        only: Texts that select the units whose keys contain one of them, and the units that these need. An optional
            unit is selected if its key begins with a text. Without texts, all units except the optional ones are run.
        fresh: Whether to run the selected units again from the start, even if they are finished or have checkpoints.
        runs: Folder for checkpoints.

    Raises:
        ValueError: The keys or needs of the units are invalid, no key contains a text, or another process runs the
            experiment.
        KeyboardInterrupt: The user pressed Ctrl-C. It is raised after the workers have been stopped.
    """
    import joblib  # type: ignore[import-untyped,unused-ignore]

    units, store = in_order(experiment.units()), Store.of(experiment, runs)
    asked = _containing(units, only)
    with _locked(store):
        if fresh:
            for key in asked:
                store.forget(key)
        results = finished(units, store)
        schedule = Schedule(_with_needs(units, asked), results, store)
        name = uuid.uuid4().hex
        jobs = joblib.effective_n_jobs(jobs)
        if jobs > 1:  # at least 2: a unit's number of threads must not depend on the number of units left
            jobs = max(2, min(jobs, len(schedule.waiting)))
        watch = Watch(screen(experiment.name), schedule, store, name)
        not_finite = {}
        with watch.watching():
            while schedule.waiting:
                try:
                    with closing(_outcomes(experiment, schedule, store, name, jobs)) as outcomes:
                        for outcome in outcomes:
                            schedule.ended(outcome.key, outcome.error)
                            watch.ended(outcome)
                            if outcome.not_finite:
                                not_finite[outcome.key] = outcome.not_finite
                except BrokenProcessPool:
                    schedule.crashed(watch.started())
    return Summary(*counted(units, finished(units, store)), schedule.failed, not_finite)


def _outcomes(experiment: Experiment, schedule: Schedule, store: Store, name: str, jobs: int) -> Generator[Outcome]:
    """Run the units from the schedule and yield their outcomes. If the generator is closed early, the workers end."""
    from joblib import Parallel, delayed

    here = os.getpid()

    def tasks() -> Iterator[Any]:
        while schedule.waiting:
            unit = schedule.next()
            if unit is not None:
                yield delayed(work)(experiment, unit, schedule.needed(unit), store, name, here)
            elif schedule.waiting:
                yield delayed(idle)(here)

    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch=jobs, batch_size=1)
    with _deaf():
        outcomes = parallel(tasks())
    try:
        yield from (outcome for outcome in outcomes if outcome is not None)
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning that not all outcomes were used
            outcomes.close()


@contextmanager
def _deaf() -> Iterator[None]:
    """Context in which new processes ignore Ctrl-C permanently, because the runner handles it and ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _locked(store: Store) -> Iterator[None]:
    """Context with a lock on the experiment, because two runs of it would write the same checkpoints."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    store.runs.mkdir(parents=True, exist_ok=True)
    with open(store.runs / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{store.experiment!r} must be run by one process at a time, got a second") from None
        yield


def _containing(units: Sequence[Unit], only: Sequence[str]) -> set[str]:
    def asked(unit: Unit, text: str) -> bool:
        return unit.key.startswith(text) if unit.optional else text in unit.key

    for text in only:
        if not any(asked(unit, text) for unit in units):
            raise ValueError(f"--only must be part of the key of a unit, got {text!r}")
    if not only:
        return {unit.key for unit in units if not unit.optional}
    return {unit.key for unit in units if any(asked(unit, text) for text in only)}


def _with_needs(units: Sequence[Unit], keys: set[str]) -> list[Unit]:
    keys = set(keys)
    for unit in reversed(units):
        if unit.key in keys:
            keys.update(unit.needs)
    return [unit for unit in units if unit.key in keys]
