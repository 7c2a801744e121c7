"""Which unit is next."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from experiments.experiment import Unit
from experiments.results import Result, Store


class Schedule:
    """Hands out units whose needs are there, those with the longest way to the end first.

    The runner's main thread and the threads that feed its workers use it at the same time.

    Args:
        units: Those to finish, in an order in which needed ones come first.
        results: Results that are there already, of other units too.
        store: Where results are read from.
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
        """A unit to run now; ``None``: all that wait need something that is not there yet."""
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
                self.results[unit.key] = found  # what it needs was redone and came out as before
            return None

    def needed(self, unit: Unit) -> dict[str, Result]:
        """The results that a unit is handed."""
        return {key: self.results[key] for key in unit.needs}

    def ended(self, key: str, error: str | None) -> None:
        """A unit that ran has its result, or has failed, and with it all that need it."""
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
        """Worker processes died: one did, and the pool ends all then.

        Nobody knows which unit was it, so those that had started are tried once more, at the end, one at a time; a
        unit that ran alone is the one.
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
