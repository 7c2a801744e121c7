"""The output of a fit: a summary of the table, progress, or plain lines if stderr is no terminal, and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from bayesadam.tables.cli.mistakes import say
from bayesadam.tables.encoder.column_types import Column
from bayesadam.tables.report.scores import scores
from bayesadam.tables.runs.fit_table import Watcher
from bayesadam.tables.runs.prepare import Prepared
from bayesadam.tables.runs.settings import with_options

_LINES = 10
"""Number of lines about the training if stderr is not a terminal."""
_PLURAL = {"number": "numbers", "category": "categories", "date": "dates"}


class Screen(Watcher):
    """The user interface of a fit in a terminal.

    Args:
        out: Console for the summary of the table.
        err: Console for the progress.

    Attributes:
        bar: The progress bar, a context manager that shows it.
    """

    def __init__(self, out: Console, err: Console) -> None:
        self._out, self._err = out, err
        self._live = err.is_terminal
        self.bar = Progress(
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
        self._task = self.bar.add_task("training", total=None, note="", visible=False)

    def prepared(self, prepared: Prepared) -> None:
        """Print a summary of the table."""
        target, split = prepared.target, prepared.split
        columns = prepared.file.table.num_columns
        self._say(f"{prepared.file.name}: {len(prepared.y):,} rows, {columns} columns")
        override = " (if not: --task regression)" if target.classes and "whole numbers" in target.why else ""
        self._row("predict", f"{target.name}: {target.task}, {target.why}{override}")
        if target.classes:
            self._row("", f"{len(target.classes)} classes: {_listed([str(label) for label in target.classes])}")
        self._row("from", _inputs(prepared.encoder.columns_))
        for name, reason in prepared.left_out.items():
            self._row("left out", f"{name}: {with_options(reason)}")
        self._row("held out", f"{len(split.held_out):,} rows: {split.how}; {len(split.training):,} are trained on")
        for note in prepared.notes:
            self._row("note", with_options(note))
        self.bar.update(self._task, visible=True)

    def epoch(self, status: Any) -> None:
        """Advance the progress bar, or print a line."""
        shows_nll = status.held_out_nll is not None and math.isfinite(status.held_out_nll)
        note = f"validation NLL {status.held_out_nll:.3f}" if shows_nll else ""
        self.bar.update(self._task, completed=status.epoch, total=status.epochs, note=note)
        every = max(1, status.epochs // _LINES)
        if not self._live and (status.epoch % every == 0 or status.epoch == status.epochs):
            words = [f"epoch {status.epoch} of {status.epochs}", *[note] * shows_nll, f"{status.seconds:.0f} s"]
            say(", ".join(words), self._err)

    def stage(self, what: str) -> None:
        """Show a stage after the training, whose duration is unknown."""
        self.bar.remove_task(self._task)
        self._task = self.bar.add_task(what, total=None, note="")
        if not self._live:
            say(what, self._err)

    def _row(self, head: str, text: str) -> None:
        self._say(f"  {head:<10}{text}")

    def _say(self, text: str) -> None:
        say(text, self._out)


def score_table(metrics: Mapping[str, Mapping[str, float | None]]) -> Table:
    """Return a table with a column of scores on the held-out rows for each model; the best of each row is bold.

    The names of models and scores are in two lines if the terminal is narrow.
    """
    table = Table(title="held-out rows", title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column()
    for model in metrics:
        table.add_column(model, justify="right", min_width=max(map(len, model.split())))
    for name, _, row in scores(metrics):
        table.add_row(name, *(f"[bold]{text}[/]" if best else text for text, best in row.values()))
    return table


def _inputs(columns: Sequence[Column]) -> str:
    kinds: dict[str, list[str]] = {}
    for column in columns:
        kinds.setdefault(column.kind, []).append(column.name)
    return ", ".join(
        f"{len(names)} {kind if len(names) == 1 else _PLURAL.get(kind, kind)} ({_listed(names)})"
        for kind, names in kinds.items()
    )


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")
