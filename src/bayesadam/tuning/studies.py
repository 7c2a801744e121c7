"""Optuna studies: storing them, asking them for candidates, and telling them values."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import optuna
from optuna.samplers import BaseSampler, GPSampler, PartialFixedSampler, RandomSampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.trial import Trial, TrialState, create_trial

from bayesadam.tuning.journal import Journal
from bayesadam.tuning.plan import Plan, Storage, is_url

EVALUATED = (TrialState.COMPLETE, TrialState.PRUNED)
TAKEN = (*EVALUATED, TrialState.RUNNING)
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Context without Optuna's messages and its warnings about experimental features.

    Both settings are global, so the context encloses Optuna's calls only, never the objective, and one thread at a
    time.
    """
    logger = logging.getLogger("optuna")
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        level = logger.level
        logger.setLevel(max(level, logging.WARNING))
        try:
            yield
        finally:
            logger.setLevel(level)


def open_storage(storage: Storage) -> BaseStorage:
    """Open the given storage, or a storage in memory for ``None``."""
    if storage is None:
        return InMemoryStorage()
    if isinstance(storage, BaseStorage):
        return storage
    if not is_url(storage):
        path = os.fspath(storage)
        return JournalStorage(Journal(path))
    url = str(storage)
    # Processes that write to an SQLite file wait for each other, by default for only 5 seconds.
    options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    return RDBStorage(url, options)


def load_or_create(plan: Plan, storage: BaseStorage) -> list[optuna.Study]:
    """Load or create all studies. The stored studies are checked before a new one is created."""
    stored = optuna.get_all_study_names(storage)
    for name in [name for name in plan.studies if name in stored]:
        study = optuna.load_study(study_name=name, storage=storage)
        if [d.name.lower() for d in study.directions] != [plan.direction]:
            rule = " and ".join(repr(d.name.lower()) for d in study.directions)
            raise ValueError(f"direction must be {rule}, as of the stored study {name!r}, got {plan.direction!r}")
        for trial in study.get_trials(deepcopy=False):
            space = trial.distributions
            if trial.state not in EVALUATED:  # killed during the proposal, it may lack parameters
                space = {**plan.space, **space}
            if space != plan.space:
                raise ValueError(f"space must be {space!r}, as of the stored study {name!r}, got {plan.space!r}")
    with quiet():
        return [
            optuna.create_study(study_name=name, storage=storage, direction=plan.direction, load_if_exists=True)
            for name in plan.studies
        ]


def ask(plan: Plan, position: int, study: optuna.Study) -> tuple[int, Trial] | None:
    """Return the number of the round and its trial, or ``None`` if other machines have taken the remaining rounds."""
    while True:
        trials = study.get_trials(deepcopy=False)
        number = sum(trial.state in TAKEN for trial in trials)
        if number >= plan.rounds:
            return None
        seed = int(np.random.SeedSequence(plan.seed, spawn_key=(position, number)).generate_state(1)[0])
        with quiet():
            if plan.sampler is None:
                study.sampler = _gaussian_process(plan, study, seed)
            else:
                study.sampler = plan.sampler(seed)
            trial = study.ask(dict(plan.space))
        if trial.number <= len(trials):
            return number, trial
        # Another machine has asked for a candidate since the trials were counted, and may have used the same seed.
        tell(study, trial.number, TrialState.FAIL)


def _gaussian_process(plan: Plan, study: optuna.Study, seed: int) -> BaseSampler:
    """Create the default sampler, for which pruned trials have the worst value of all trials.

    Optuna's sampler ignores pruned trials and would propose the same candidate for ever. If there are pruned trials,
    the sampler works on a copy of the study in which they have the worst value.
    """
    process = GPSampler(seed=seed, n_startup_trials=plan.startup, warn_independent_sampling=False)
    trials = study.get_trials(deepcopy=False, states=TAKEN)
    values = [t.value for t in trials if t.value is not None]
    if not values or all(t.state is not TrialState.PRUNED for t in trials):
        return process
    worst = min(values) if plan.direction == "maximize" else max(values)
    copy = optuna.create_study(sampler=process, direction=plan.direction)
    for t in trials:
        pruned = t.state is TrialState.PRUNED
        copy.add_trial(create_trial(value=worst, params=t.params, distributions=t.distributions) if pruned else t)
    return PartialFixedSampler(copy.ask(dict(plan.space)).params, RandomSampler(seed))


def tell(study: optuna.Study, number: int, state: TrialState, value: float | None = None) -> None:
    """Record a trial, unless another machine has recorded it as failed because there was no sign of life for too
    long.
    """
    with quiet():
        study.tell(number, value, state=state, skip_if_finished=True)
