"""Progress bars by rich, shown if it is installed and the output is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Function that moves a bar forward by an amount, and may change the note behind it."""

    def __call__(self, amount: float = 1.0, note: str | None = None) -> None: ...  # noqa: D102


@contextmanager
def progress_bar(
    description: str, total: float | None, progress: bool | None, *, shown: bool = True
) -> Iterator[Advance]:
    """Context with a progress bar on stderr that shows the remaining time; it gives the function that moves the bar.

    Args:
        description: Description of the work.
        total: Sum of all amounts, or ``None`` if it is unknown.
        progress: ``True`` always shows the bar, ``False`` never does, and ``None`` shows it if ``shown`` is true,
            stderr is a terminal and rich is installed.
        shown: Whether this work takes long enough for a bar.

    Raises:
        ImportError: ``progress=True`` without rich.
    """
    if progress is False or (progress is None and not (shown and sys.stderr.isatty())):
        yield _silent
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    except ImportError:
        if progress:
            raise ImportError('progress=True needs rich: pip install "bayesadam[cli]"') from None
        yield _silent
        return
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(amount: float = 1.0, note: str | None = None) -> None:
            bar.advance(task, amount)
            if note is not None:
                bar.update(task, note=note)

        yield advance


def _silent(amount: float = 1.0, note: str | None = None) -> None:
    pass
