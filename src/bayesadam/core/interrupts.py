"""Postponing Ctrl-C while weights and state are between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def postponed_interrupt() -> Iterator[None]:
    """Context that postpones an interrupt (SIGINT) until its end.

    Python raises ``KeyboardInterrupt`` in the main thread only, so other threads need nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    received: list[Any] = []
    signal.signal(signal.SIGINT, lambda *args: received.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            before(*received[0])
