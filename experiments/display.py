"""The progress of a run on stderr: bars in a terminal, and otherwise lines for a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from experiments.results import Store
from experiments.schedule import Schedule
from experiments.worker import Outcome, State


class Screen(Protocol):
    """Interface of the classes that show the progress of a run."""

    def show(self, running: Mapping[str, State], fraction: float, text: str) -> None:
        """Called twice a second with the running units, the completed share of the work, and this share in words."""

    def say(self, text: str) -> None:
        """Called with a message when a unit starts or ends."""

    def close(self) -> None:
        """Called at the end of the run."""


class Bars:
    """A bar for the whole run and one for each running unit, as many as fit; they disappear at the end."""

    def __init__(self, title: str, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
        )
        self.whole = self.progress.add_task(title, total=1.0, note="")
        self.tasks: dict[str, TaskID] = {}
        self.progress.start()

    def show(self, running: Mapping[str, State], fraction: float, text: str) -> None:
        """Update the bars."""
        self.progress.update(self.whole, completed=fraction, note=text)
        for key in [key for key in self.tasks if key not in running]:
            self.progress.remove_task(self.tasks.pop(key))
        for key, state in running.items():
            if key not in self.tasks:
                self.tasks[key] = self.progress.add_task(f"  {key}", total=1.0, note="")
            self.progress.update(self.tasks[key], completed=state.fraction, note=state.note)

    def say(self, text: str) -> None:
        """Do nothing, since the bars already show the state."""

    def close(self) -> None:
        """Remove the bars from the terminal."""
        self.progress.stop()


class Log:
    """One line for each message, and a line on the progress every minute."""

    EVERY = 60.0

    def __init__(self, title: str) -> None:
        self.title, self.written = title, time.monotonic()

    def show(self, running: Mapping[str, State], fraction: float, text: str) -> None:
        """Write a line on the progress, unless the last line was written less than a minute ago."""
        if time.monotonic() - self.written >= self.EVERY:
            self.written = time.monotonic()
            units = "; ".join(f"{key} {state.fraction:.0%} {state.note}".rstrip() for key, state in running.items())
            self.say(f"{fraction:.0%} done: {text}" + (f" ({units})" if units else ""))

    def say(self, text: str) -> None:
        """Write a line."""
        print(f"{datetime.now():%H:%M:%S} {self.title}: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing."""


def screen(title: str) -> Screen:
    """Return bars if stderr is a terminal, and otherwise a log."""
    console = Console(file=sys.stderr)
    return Bars(title, console) if sys.stderr.isatty() and not console.is_dumb_terminal else Log(title)


class Watch:
    """Reads the progress that the units of a run write to files, and passes it to the screen.

    Args:
        screen: Screen that shows the progress.
        schedule: Schedule of the units, which knows those that wait, run, are finished or have failed.
        store: Store with the folders of the units.
        run: Name of the run. Files of other runs are ignored.
    """

    EVERY = 0.5

    def __init__(self, screen: Screen, schedule: Schedule, store: Store, run: str) -> None:
        self.screen, self.schedule, self.store, self.run = screen, schedule, store, run
        self.states: dict[str, State] = {}
        self.began = time.monotonic()
        self._lock = threading.Lock()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context in which a thread updates the screen twice a second."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(self.EVERY):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.screen.close()

    def look(self) -> None:
        """Read the progress of the running units, and show it."""
        with self._lock:
            running = {}
            for key in list(self.schedule.running):
                state = State.read(self.store.folder(key))
                if state is not None and state.run == self.run:
                    self._seen(key, state)
                    running[key] = state
            self.screen.show(running, *self._whole())

    def ended(self, outcome: Outcome) -> None:
        """Show how a unit ended. The schedule must have been updated before."""
        with self._lock:
            self._seen(outcome.key, self.states.get(outcome.key, State()))
            what = "finished in" if outcome.error is None else "failed after"
            self.screen.say(f"{outcome.key} {what} {duration(outcome.seconds)} ({self._whole()[1]})")

    def started(self) -> set[str]:
        """Return the keys of the running units that have written a state."""
        self.look()
        return self.states.keys() & set(self.schedule.running)

    def _seen(self, key: str, state: State) -> None:
        if key not in self.states:
            past = f" at {state.start:.0%}" if state.start else ""
            self.screen.say(f"{key} started{past}")
        self.states[key] = state

    def _whole(self) -> tuple[float, str]:
        """Return the completed share of the work, weighted by cost, and a text on the state of the run."""
        schedule, states = self.schedule, self.states
        cost = {key: unit.cost for key, unit in schedule.units.items()}
        finished = cost.keys() & set(schedule.results)
        running = states.keys() & set(schedule.running)
        new = finished - schedule.done_before
        done = sum(cost[key] for key in finished) + sum(cost[key] * states[key].fraction for key in running)
        gained = done - sum(cost[key] for key in finished - new)
        gained -= sum(cost[key] * states[key].start for key in running | (new & states.keys()))
        left = sum(cost.values()) - done - sum(cost[key] for key in schedule.failed)
        words = [f"{len(finished)} of {len(cost)} units"]
        if running:
            words.append(f"{len(running)} running")
        if schedule.failed:
            words.append(f"{len(schedule.failed)} failed")
        elapsed = time.monotonic() - self.began
        if running and gained > 0 and elapsed > 2.0:  # earlier estimates would be poor
            words.append(f"about {duration(elapsed * left / gained)} left")
        return done / sum(cost.values()), ", ".join(words)


def duration(seconds: float) -> str:
    """Return a duration in words, with at most two units: "12 s", "5 min 20 s", "2 h 5 min", "3 d 4 h"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"
