"""Where a function of a positive number is least."""

from __future__ import annotations

import math
from collections.abc import Callable

RATIO = (math.sqrt(5.0) - 1.0) / 2.0


def least(function: Callable[[float], float], low: float, high: float, steps: int) -> tuple[float, float]:
    """The number in ``[low, high]`` at which a function is least, and its value there, by golden section.

    The logarithm of the number is searched. Of a function with one minimum the bracket is ``0.618**steps`` of its width
    in the end; a function that is flat has its end at ``low``.

    Args:
        function: Of a positive number; called ``steps + 2`` times.
        low: Positive.
        high: Larger.
        steps: Times that the bracket is narrowed.
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
