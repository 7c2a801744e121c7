"""Tuning hyper-parameters by Bayesian optimisation in rounds; the candidates of all studies are evaluated together.

A study is one search, for example on one data split. Optuna proposes candidates and records the results. The objective
receives a whole round at once, so that the networks of all studies can be trained as one population. An interrupted run
can be resumed::

    from optuna.distributions import FloatDistribution
    from bayesadam import tuning

    def objective(candidates):
        return [-((c.params["x"] - 0.3) ** 2) - 0.1 * c.study for c in candidates]

    splits = [f"split {i}" for i in range(20)]
    space = {"x": FloatDistribution(0.0, 1.0)}
    found = tuning.tune(objective, space, studies=splits, rounds=20, storage="tuning.log")
    print([study.best_params for study in found])
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bayesadam.checks import check, is_whole
from bayesadam.progress import progress_bar

try:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler, GPSampler, PartialFixedSampler, RandomSampler
    from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage, fail_stale_trials
    from optuna.trial import Trial, TrialState, create_trial

    from bayesadam.journal import Journal
except ImportError as error:
    raise ImportError('bayesadam.tuning needs optuna: pip install "bayesadam[tune]"') from error

HEARTBEAT = 60
"""Seconds between two heartbeats in a database; a trial without one for twice this time counts as lost."""

Direction = Literal["maximize", "minimize"]
Storage = str | os.PathLike[str] | BaseStorage | None

_EVALUATED = (TrialState.COMPLETE, TrialState.PRUNED)
_TAKEN = (*_EVALUATED, TrialState.RUNNING)
_ONE_AT_A_TIME = threading.RLock()
_LOOK = 2.0  # seconds between two looks at what other processes have done


@dataclass(frozen=True)
class Candidate:
    """Hyper-parameters to evaluate in round ``number`` of the study called ``name``, at position ``study``."""

    study: int
    name: str
    number: int
    params: dict[str, Any]


@dataclass(frozen=True)
class _Plan:
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


def _is_url(storage: Any) -> bool:
    return isinstance(storage, str) and "://" in storage


def _is_storage(value: Any) -> bool:
    if isinstance(value, str | os.PathLike) and not _is_url(value):
        return Path(value).parent.is_dir() and not Path(value).is_dir()
    return value is None or isinstance(value, BaseStorage) or _is_url(value)


def tune(
    objective: Callable[[list[Candidate]], Sequence[float]],
    space: Mapping[str, BaseDistribution],
    *,
    studies: Sequence[str] = ("study",),
    rounds: int = 30,
    startup: int = 5,
    direction: Direction = "maximize",
    storage: Storage = None,
    sampler: Callable[[int], BaseSampler] | None = None,
    seed: int = 0,
    jobs: int = 1,
    progress: bool | None = None,
) -> list[optuna.Study]:
    """Search until every study has ``rounds`` evaluated trials.

    To continue after an interruption, call it again with the same storage: candidates that were lost are proposed again
    with the same parameters, and the results are those of a run without interruption. If the objective raises an error,
    its candidates are recorded as failed; failed trials do not count.

    Args:
        objective: Function that returns the values of one round, in the order of the candidates. A round has one
            candidate of every study, or after an interruption those of the studies that are behind. A value that is not
            finite marks the candidate as useless: the trial is recorded as pruned, counts, and is never the best. If
            all are useless, ``study.best_trial`` raises Optuna's ValueError.
        space: Distributions by name of the hyper-parameter.
        studies: Names of the studies; each is an independent Optuna study.
        rounds: Number of evaluated trials per study, including those of earlier calls.
        startup: Number of random rounds before the Gaussian process is used.
        direction: ``"maximize"`` or ``"minimize"``.
        storage: ``None`` keeps the studies in memory. A path is a journal file, for one run at a time. A URL such as
            ``"sqlite:///file.db"`` is a database, in which several machines may work on the same studies; trials of a
            killed run count as running elsewhere for two minutes, and are then proposed again. An Optuna storage is
            used as it is; it must have a heartbeat to be shared by several runs.
        sampler: Function that makes a sampler from a seed; it is called for every candidate. The default is a Gaussian
            process with a Matern 5/2 kernel and expected improvement, which treats useless candidates as being as bad
            as the worst.
        seed: Seed. A candidate depends only on the study's earlier trials and on ``SeedSequence(seed,
            spawn_key=(position of the study, number of the round))``. If several machines work on one study, it also
            depends on their timing.
        jobs: Number of joblib workers among which the studies are divided, with the backend that
            ``joblib.parallel_config`` has set; the results do not depend on it. The objective must be picklable, and
            the storage a path or a URL.
        progress: Whether to show a progress bar; ``None`` shows it if stderr is a terminal.

    Returns:
        The studies, in the order of their names.

    Raises:
        ValueError: An argument is wrong, the storage holds a study with another space or direction, or the objective
            did not return one number per candidate.
        ImportError: ``jobs > 1`` without joblib, or ``progress=True`` without rich.
    """
    plan = _Plan(objective, space, studies, rounds, startup, direction, storage, sampler, seed, jobs)
    opened = _open(storage)
    found = _load_or_create(plan, opened)
    lacking, note = _state(plan, found)
    behind = [i for i, count in enumerate(lacking) if count > 0]
    left = sum(lacking)
    with progress_bar("tuning", left, progress) as advance:

        def report() -> None:
            nonlocal left
            lacking, note = _state(plan, found)
            advance(left - sum(lacking), note)
            left = sum(lacking)

        advance(0, note)
        if jobs > 1 and len(behind) > 1:
            _run_in_parallel(plan, behind, report)
        else:
            _run(plan, opened, {i: found[i] for i in behind}, report)
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Context without Optuna's messages and its warnings about experimental features.

    Both settings are global, so the context encloses Optuna's calls only, never the objective, and one thread at a
    time.
    """
    logger = logging.getLogger("optuna")
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage is supposed to be used with", UserWarning)
        level = logger.level
        logger.setLevel(max(level, logging.WARNING))
        try:
            yield
        finally:
            logger.setLevel(level)


def _open(storage: Storage) -> BaseStorage:
    if storage is None:
        return InMemoryStorage()
    if isinstance(storage, BaseStorage):
        return storage
    if not _is_url(storage):
        path = os.fspath(storage)
        return JournalStorage(Journal(path))
    url = str(storage)
    # Writers of an SQLite file wait for each other, by default for 5 seconds only.
    options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    with _quiet():
        return RDBStorage(url, options, heartbeat_interval=HEARTBEAT)


def _load_or_create(plan: _Plan, storage: BaseStorage) -> list[optuna.Study]:
    """Load or create all studies; stored ones are checked before a new one is created."""
    stored = optuna.get_all_study_names(storage)
    for name in [name for name in plan.studies if name in stored]:
        study = optuna.load_study(study_name=name, storage=storage)
        if [d.name.lower() for d in study.directions] != [plan.direction]:
            rule = " and ".join(repr(d.name.lower()) for d in study.directions)
            raise ValueError(f"direction must be {rule}, as of the stored study {name!r}, got {plan.direction!r}")
        for trial in study.get_trials(deepcopy=False):
            space = trial.distributions
            if trial.state not in _EVALUATED:  # killed in the middle of a proposal, it may lack some names
                space = {**plan.space, **space}
            if space != plan.space:
                raise ValueError(f"space must be {space!r}, as of the stored study {name!r}, got {plan.space!r}")
    with _quiet():
        return [
            optuna.create_study(study_name=name, storage=storage, direction=plan.direction, load_if_exists=True)
            for name in plan.studies
        ]


def _state(plan: _Plan, studies: Sequence[optuna.Study]) -> tuple[list[int], str]:
    """Number of trials that each study lacks, and a note with the best value so far (for several studies the
    median).
    """
    lacking, best = [], []
    for study in studies:
        trials = study.get_trials(deepcopy=False, states=_EVALUATED)
        lacking.append(max(0, plan.rounds - len(trials)))
        if values := [t.value for t in trials if t.value is not None]:
            best.append(max(values) if plan.direction == "maximize" else min(values))
    label = "median best" if len(studies) > 1 else "best"
    return lacking, f"{label} {statistics.median(best):.4g}" if best else ""


def _run_in_parallel(plan: _Plan, behind: list[int], report: Callable[[], None]) -> None:
    from joblib import Parallel, delayed

    shares = [behind[i :: plan.jobs] for i in range(min(plan.jobs, len(behind)))]
    with _repeated(report, _LOOK):
        Parallel(n_jobs=len(shares))(delayed(_run_share)(plan, share) for share in shares)
    report()


def _run_share(plan: _Plan, share: list[int]) -> None:
    storage = _open(plan.storage)
    studies = {i: optuna.load_study(study_name=plan.studies[i], storage=storage) for i in share}
    _run(plan, storage, studies, lambda: None)


def _run(plan: _Plan, storage: BaseStorage, studies: Mapping[int, optuna.Study], report: Callable[[], None]) -> None:
    """Run round after round; studies that are behind are continued first."""
    interval = _heartbeat_interval(storage)
    if interval is None:  # nobody else may be at work, so trials that run are those of a run that was killed
        for study in studies.values():
            for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                _tell(study, trial.number, TrialState.FAIL)
    awaited: set[int] = set()
    while True:
        if interval is not None:
            with _quiet():
                for study in studies.values():
                    fail_stale_trials(study)
        taken = {i: len(study.get_trials(deepcopy=False, states=_TAKEN)) for i, study in studies.items()}
        least = min(taken.values(), default=plan.rounds)
        if least < plan.rounds:
            _round(plan, storage, {i: study for i, study in studies.items() if taken[i] == least})
            report()
        elif interval is None or not (running := _running(storage, studies)):
            return
        else:
            for trial_id in running - awaited:  # Optuna takes no trial for lost that never had a heartbeat
                storage.record_heartbeat(trial_id)  # type: ignore[attr-defined]
            awaited |= running
            time.sleep(min(interval, _LOOK))
            report()


def _running(storage: BaseStorage, studies: Mapping[int, optuna.Study]) -> set[int]:
    """Ids of the trials that other machines evaluate, or were evaluating when they stopped."""
    return {
        _trial_id(storage, study, trial.number)
        for study in studies.values()
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    }


def _round(plan: _Plan, storage: BaseStorage, studies: Mapping[int, optuna.Study]) -> None:
    """Ask all of these studies for a candidate, evaluate the candidates, and record the values."""
    asked: list[tuple[optuna.Study, Trial]] = []
    candidates: list[Candidate] = []
    try:
        for position, study in studies.items():
            if (proposal := _ask(plan, position, study)) is not None:
                number, trial = proposal
                asked.append((study, trial))
                candidates.append(Candidate(position, study.study_name, number, trial.params))
        if not asked:
            return
        with _heartbeat(storage, [_trial_id(storage, study, trial.number) for study, trial in asked]):
            values = plan.objective(candidates)
        for (study, trial), value in zip(asked, _as_numbers(values, len(asked)), strict=True):
            if math.isfinite(value):
                _tell(study, trial.number, TrialState.COMPLETE, value)
            else:
                _tell(study, trial.number, TrialState.PRUNED)
    except BaseException:
        for study, trial in asked:
            with suppress(Exception):  # the first error counts
                _tell(study, trial.number, TrialState.FAIL)
        raise


def _ask(plan: _Plan, position: int, study: optuna.Study) -> tuple[int, Trial] | None:
    """The number of the round and its trial; ``None`` if other machines have taken the remaining rounds."""
    while True:
        trials = study.get_trials(deepcopy=False)
        number = sum(trial.state in _TAKEN for trial in trials)
        if number >= plan.rounds:
            return None
        seed = int(np.random.SeedSequence(plan.seed, spawn_key=(position, number)).generate_state(1)[0])
        with _quiet():
            if plan.sampler is None:
                study.sampler = _gaussian_process(plan, study, seed)
            else:
                study.sampler = plan.sampler(seed)
            trial = study.ask(dict(plan.space))
        if trial.number <= len(trials):
            return number, trial
        # Another machine has asked since the trials were counted, and may have drawn from the same seed.
        _tell(study, trial.number, TrialState.FAIL)


def _gaussian_process(plan: _Plan, study: optuna.Study, seed: int) -> BaseSampler:
    """Make the default sampler, in which pruned trials count as the worst of all.

    Optuna's sampler ignores pruned trials and would propose the same candidate for ever. If there are any, this one
    works on a copy of the study in which they have the worst value.
    """
    process = GPSampler(seed=seed, n_startup_trials=plan.startup, warn_independent_sampling=False)
    trials = study.get_trials(deepcopy=False, states=_TAKEN)
    values = [t.value for t in trials if t.value is not None]
    if not values or all(t.state is not TrialState.PRUNED for t in trials):
        return process
    worst = min(values) if plan.direction == "maximize" else max(values)
    copy = optuna.create_study(sampler=process, direction=plan.direction)
    for t in trials:
        pruned = t.state is TrialState.PRUNED
        copy.add_trial(create_trial(value=worst, params=t.params, distributions=t.distributions) if pruned else t)
    return PartialFixedSampler(copy.ask(dict(plan.space)).params, RandomSampler(seed))


def _tell(study: optuna.Study, number: int, state: TrialState, value: float | None = None) -> None:
    """Record a trial, unless another machine has recorded it as failed because there was no heartbeat for too long."""
    with _quiet():
        study.tell(number, value, state=state, skip_if_finished=True)


def _as_numbers(values: Any, count: int) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, RuntimeError):
        numbers = []
    if len(numbers) != count:
        raise ValueError(f"what the objective returns must be {count} numbers, one per candidate, got {values!r}")
    return numbers


def _heartbeat_interval(storage: BaseStorage) -> int | None:
    """Seconds between heartbeats; ``None`` if the storage has none."""
    interval = getattr(storage, "get_heartbeat_interval", None)
    return None if interval is None else interval()


def _trial_id(storage: BaseStorage, study: optuna.Study, number: int) -> int:
    return storage.get_trial_id_from_study_id_trial_number(storage.get_study_id_from_name(study.study_name), number)


@contextmanager
def _heartbeat(storage: BaseStorage, trial_ids: list[int]) -> Iterator[None]:
    """Context that records heartbeats of these trials, which Optuna does in ``Study.optimize`` only."""
    interval = _heartbeat_interval(storage)
    if interval is None:
        yield
        return

    def beat() -> None:
        for trial_id in trial_ids:
            storage.record_heartbeat(trial_id)  # type: ignore[attr-defined]

    with _repeated(beat, interval):
        yield


@contextmanager
def _repeated(action: Callable[[], None], interval: float) -> Iterator[None]:
    """Run the action now and every ``interval`` seconds in a thread; after an error it is tried again the next time."""
    stop = threading.Event()

    def run() -> None:
        while True:
            with suppress(Exception):
                action()
            if stop.wait(interval):
                return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
