"""The output of a fit: a summary of the table, and a progress bar, or plain lines if stderr is no terminal."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from bayesadam.commands.options import fit_command, with_options
from bayesadam.runs import Prepared, Settings, Watcher
from bayesadam.tabular.columns import Column

_LINES = 10
"""Number of lines about the training if stderr is not a terminal."""


class Screen(Watcher):
    """The user interface of a fit in a terminal. As a context manager, it removes the progress bar at the end.

    Args:
        out: Console for the summary of the table.
        err: Console for the progress.
    """

    def __init__(self, out: Console, err: Console) -> None:
        self._out, self._err = out, err
        self._live = err.is_terminal
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=err,
            transient=True,
            disable=not self._live,
        )
        self._task = self._bar.add_task("training", total=None, note="", visible=False)

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def prepared(self, prepared: Prepared) -> None:
        """Print a summary of the table."""
        target, split = prepared.preprocessing.target, prepared.split
        columns = len(prepared.preprocessing.inputs.columns) + len(prepared.preprocessing.inputs.left_out) + 1
        self._say(f"{prepared.file.path.name}: {len(prepared.targets):,} rows, {columns} columns")
        other = "classification" if target.task == "regression" else "regression"
        override = f" (if not: --task {other})" if target.why.endswith("whole numbers") else ""
        self._row("predict", f"{target.name}: {target.task}, {with_options(target.why)}{override}")
        if target.classes:
            self._row("", f"{len(target.classes)} classes: {_listed([str(label) for label in target.classes])}")
        self._row("from", _inputs(prepared.preprocessing.inputs.columns))
        for name, reason in prepared.preprocessing.inputs.left_out.items():
            self._row("left out", f"{name}: {with_options(reason)}")
        self._row("held out", f"{len(split.held_out):,} rows: {split.how}; {len(split.training):,} are trained on")
        for note in prepared.notes:
            self._row("note", with_options(note))
        self._bar.update(self._task, visible=True)

    def epoch(self, status: Any) -> None:
        """Advance the progress bar, or print a line."""
        scores = [f"loss {status.loss:.3f}"] if math.isfinite(status.loss) else []
        if status.held_out_nll is not None and math.isfinite(status.held_out_nll):
            scores.append(f"validation NLL {status.held_out_nll:.3f}")
        note = ", ".join(scores)
        self._bar.update(self._task, completed=status.epoch, total=status.epochs, note=note)
        every = max(1, status.epochs // _LINES)
        if not self._live and (status.epoch % every == 0 or status.epoch == status.epochs):
            self._err.print(
                f"epoch {status.epoch} of {status.epochs}, {note}, {status.seconds:.0f} s",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )

    def stage(self, what: str) -> None:
        """Show a stage after the training, whose duration is unknown."""
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=None, note="")
        if not self._live:
            self._err.print(what, soft_wrap=True, highlight=False, markup=False)

    def words(self, text: str) -> str:
        """Replace parameters in a note by options."""
        return with_options(text)

    def command(self, settings: Settings, out: Path) -> str:
        """Return the command line that fits with these settings."""
        return fit_command(settings, out)

    def _row(self, head: str, text: str) -> None:
        self._say(f"  {head:<10}{text}")

    def _say(self, text: str) -> None:
        plain = "".join(c if c.isprintable() else " " for c in text)  # names of columns may contain control characters
        self._out.print(plain, markup=False, highlight=False, soft_wrap=True)


def _inputs(columns: tuple[Column, ...]) -> str:
    kinds: dict[str, list[str]] = {}
    for column in columns:
        kinds.setdefault(column.kind, []).append(column.name)
    plural = {"number": "numbers", "category": "categories", "date": "dates"}
    parts = [
        f"{len(names)} {kind if len(names) == 1 else plural.get(kind, kind)} ({_listed(names)})"
        for kind, names in kinds.items()
    ]
    return ", ".join(parts)


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")
