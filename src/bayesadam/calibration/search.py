"""Minimisation of a function of one positive number."""

from __future__ import annotations

import math
from collections.abc import Callable

RATIO = (math.sqrt(5.0) - 1.0) / 2.0
NEAR = 1.01
"""Largest ratio of a number to the end of a range at which it counts as being there."""


def least(function: Callable[[float], float], low: float, high: float, steps: int) -> tuple[float, float]:
    """Minimise a function over ``[low, high]`` by golden section; return the minimiser and the minimum.

    The search uses the logarithm of the number. If the function has one minimum, the final bracket is ``0.618**steps``
    of the initial one; for a flat function the search ends at ``low``.

    Args:
        function: Function of a positive number; it is called ``steps + 2`` times.
        low: Lower end, positive.
        high: Upper end, above ``low``.
        steps: Number of times that the bracket is narrowed.
    """

    def at(place: float) -> tuple[float, float]:
        return function(math.exp(place)), place

    bottom, top = math.log(low), math.log(high)
    left, right = at(top - RATIO * (top - bottom)), at(bottom + RATIO * (top - bottom))
    for _ in range(steps):
        if left[0] <= right[0]:
            top, right = right[1], left
            left = at(top - RATIO * (top - bottom))
        else:
            bottom, left = left[1], right
            right = at(bottom + RATIO * (top - bottom))
    value, place = min(left, right)
    return math.exp(place), value


def least_within(
    function: Callable[[float], float], bracket: tuple[float, float], limits: tuple[float, float], steps: int
) -> tuple[float, float]:
    """Minimise as :func:`least` in a bracket, which moves by half its width while the minimum is at an end of it.

    Args:
        function: Function of a positive number.
        bracket: The first bracket.
        limits: The smallest and the largest number at which an end of a bracket may be.
        steps: Number of times that every bracket is narrowed.
    """
    (low, high), (lowest, highest) = bracket, limits
    half = math.sqrt(high / low)
    while True:
        place, value = least(function, low, high, steps)
        if is_near(place, low) and low > NEAR * lowest and math.isfinite(value):
            low, high = max(lowest, low / half), low * half
        elif is_near(place, high) and NEAR * high < highest:
            low, high = high / half, min(highest, high * half)
        else:
            return place, value


def is_near(place: float, end: float) -> bool:
    """Whether the result of a search is at this end; a search ends near an end, and not exactly at it."""
    return end / NEAR < place < end * NEAR
