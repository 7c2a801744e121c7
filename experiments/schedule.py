"""The order in which units are run."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from experiments.experiment import Unit
from experiments.results import Result, Store


class Schedule:
    """Selects the next unit among those whose needed results exist: the unit with the largest remaining cost in its
    chain of dependent units.

    It is used by the runner's main thread and the threads that feed its workers at the same time.

    Args:
        units: Units to run. Every unit comes after those that it needs.
        results: Results that already exist, including those of units that are not run.
        store: Store from which results are read.
    """

    def __init__(self, units: Sequence[Unit], results: Mapping[str, Result], store: Store) -> None:
        self.units = {unit.key: unit for unit in units}
        self.results, self.store = dict(results), store
        self.done_before = self.units.keys() & results.keys()
        self.running: dict[str, Unit] = {}
        self.failed: dict[str, str] = {}
        self._alone: set[str] = set()
        self._lock = threading.RLock()
        way: dict[str, float] = {}
        for unit in reversed(units):
            way[unit.key] = unit.cost + max((way[other.key] for other in units if unit.key in other.needs), default=0.0)
        self.waiting = sorted(
            (unit for unit in units if unit.key not in results), key=lambda unit: way[unit.key], reverse=True
        )

    def next(self) -> Unit | None:
        """Return a unit to run now, or ``None`` if all waiting units need results that do not exist yet."""
        with self._lock:
            if self.running.keys() & self._alone:
                return None
            for unit in list(self.waiting):
                if not self.results.keys() >= set(unit.needs) or (unit.key in self._alone and self.running):
                    continue
                self.waiting.remove(unit)
                found = self.store.load(unit, self.results)
                if found is None:
                    self.running[unit.key] = unit
                    return unit
                self.results[unit.key] = found  # a needed unit was run again with the same result
            return None

    def needed(self, unit: Unit) -> dict[str, Result]:
        """Return the results that a unit needs, by key."""
        return {key: self.results[key] for key in unit.needs}

    def ended(self, key: str, error: str | None) -> None:
        """Record that a running unit has ended. If it failed, the units that need it fail as well."""
        with self._lock:
            unit = self.running.pop(key)
            if error is None:
                found = self.store.load(unit, self.results)
                if found is not None:
                    self.results[key] = found
                    return
                error = "its result was removed while it ran"
            self._fail(key, error)

    def crashed(self, started: set[str]) -> None:
        """Handle the death of a worker process, after which the pool ends all worker processes.

        The unit that caused it is unknown. The units that had started are therefore run once more, at the end and one
        at a time. A unit that ran alone has failed.
        """
        with self._lock:
            lost, self.running = self.running, {}
            suspects = [unit for unit in lost.values() if unit.key in started] or list(lost.values())
            self.waiting[:0] = [unit for unit in lost.values() if unit not in suspects]
            if len(suspects) == 1:
                self._fail(suspects[0].key, "its worker process died (killed, perhaps for want of memory)")
            else:
                self.waiting += suspects
                self._alone |= {unit.key for unit in suspects}

    def _fail(self, key: str, error: str) -> None:
        self.failed[key] = error
        for unit in list(self.waiting):
            if key in unit.needs and unit in self.waiting:
                self.waiting.remove(unit)
                self._fail(unit.key, f"not run: it needs {key!r}, which failed")
