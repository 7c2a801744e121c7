"""Progress bars by rich, if it is installed and somebody looks."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(
    items: Iterable[Any], times: int, progress: bool | None, *, shown: bool
) -> Iterator[Callable[[], None]]:
    """A function that moves a bar on stderr forward, to be called once for each of ``times`` visits to every item.

    Args:
        items: With or without a length; not iterated over.
        times: Visits to each.
        progress: ``True``: always; ``False``: never; ``None``: if ``shown`` and stderr is a terminal and rich is there.
        shown: Whether these items are worth a bar.

    Raises:
        ImportError: ``progress=True`` without rich.
    """
    if progress is False or (progress is None and not (shown and sys.stderr.isatty())):
        yield lambda: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        if progress:
            raise ImportError('progress=True needs rich: pip install "bayesadam[cli]"') from None
        yield lambda: None
        return
    console = Console(stderr=True)
    with Progress(console=console, transient=console.is_terminal) as bar:
        task = bar.add_task("predicting", total=operator.length_hint(items) * times or None)
        yield lambda: bar.advance(task)
