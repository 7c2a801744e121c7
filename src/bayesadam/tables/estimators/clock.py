"""The time that a fit may take, and what it leaves out to keep to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


class OutOfTimeError(Exception):
    """A part of a fit would take longer than there is time."""


class Clock:
    """The time that is left for a fit or a part of it.

    Args:
        seconds: Duration from now on; by default without a limit.

    Attributes:
        limited: Whether there is a limit.
        left_out: What was left out, in words.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.limited = seconds is not None
        self._end = math.inf if seconds is None else time.monotonic() + seconds
        self.left_out: list[str] = []

    @property
    def left(self) -> float:
        """Seconds that are left; negative if more have passed."""
        return self._end - time.monotonic()

    def part(self, share: float) -> Clock:
        """Return a clock with a share of the time that is left."""
        part = Clock(share * self.left if self.limited else None)
        part.left_out = self.left_out
        return part

    def require(self, seconds: float = 0.0) -> None:
        """Raise :class:`OutOfTimeError` if less time is left."""
        if seconds > self.left:
            raise OutOfTimeError

    def rounds(self, count: int) -> Callable[[], None]:
        """Return a function to call before each of ``count`` rounds that take about as long as each other.

        It raises :class:`OutOfTimeError` if the remaining rounds would take longer than there is time.
        """
        begin, done = time.monotonic(), 0

        def check() -> None:
            nonlocal done
            self.require((time.monotonic() - begin) / done * (count - done) if done else 0.0)
            done += 1

        return check

    def gathered(self, what: str, parts: Iterable[T]) -> list[T]:
        """Return the parts that there is time for; if it is not all of them, ``what`` is noted as left out."""
        gathered: list[T] = []
        try:
            for part in parts:
                gathered.append(part)
        except OutOfTimeError:
            self.left_out.append(what)
        return gathered
