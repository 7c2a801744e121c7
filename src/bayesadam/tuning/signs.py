"""Signs of life of trials, which show whether another run is evaluating a trial or has died.

Optuna's heartbeats are for ``Study.optimize`` only. With ``ask`` and ``tell``, a sign of life is a user attribute of
the trial: the current time, which is renewed while the objective is running. The clocks of machines that share a
database may differ by less than ``INTERVAL``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.trial import Trial, TrialState

from bayesadam.tuning.studies import tell

INTERVAL = 60.0
"""Seconds between two signs of life; a trial without one for twice this time is lost."""
_ALIVE = "alive"


def may_be_shared(storage: BaseStorage) -> bool:
    """Whether several runs may use a storage at once; a storage in memory or a journal serves one run at a time."""
    return not isinstance(storage, InMemoryStorage | JournalStorage)


@contextmanager
def signs_of_life(trials: Sequence[Trial]) -> Iterator[None]:
    """Context in which these trials have signs of life."""

    def show() -> None:
        for trial in trials:
            with suppress(RuntimeError):  # another run has recorded it as failed
                trial.set_user_attr(_ALIVE, time.time())

    with repeated(show, INTERVAL):
        yield


class Lost:
    """The trials that were lost because the run that evaluated them died.

    Args:
        studies: Studies whose trials are examined.
        shared: Whether other runs may use the same storage at the same time. If not, all trials that are recorded as
            running at the start are lost. Otherwise a trial is lost if its last sign of life is older than twice
            ``INTERVAL``; for a trial without any sign, the time starts when it is first seen.
    """

    def __init__(self, studies: Iterable[optuna.Study], shared: bool) -> None:
        self._studies, self._first_seen = list(studies), dict[tuple[str, int], float]()
        if not shared:
            for study, trial in self.running():
                tell(study, trial.number, TrialState.FAIL)

    def running(self) -> list[tuple[optuna.Study, optuna.trial.FrozenTrial]]:
        """Return the trials that are recorded as running."""
        states = (TrialState.RUNNING,)
        return [(s, trial) for s in self._studies for trial in s.get_trials(deepcopy=False, states=states)]

    def record(self) -> None:
        """Record lost trials as failed."""
        for study, trial in self.running():
            now = time.time()
            first = self._first_seen.setdefault((study.study_name, trial.number), now)
            if now - trial.user_attrs.get(_ALIVE, first) > 2.0 * INTERVAL:
                tell(study, trial.number, TrialState.FAIL)


@contextmanager
def repeated(action: Callable[[], None], interval: float) -> Iterator[None]:
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
