"""One minimisation: steps until a tolerance is met, evaluations run out or the callback stops it."""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam.black_box.function import Function
from bayesadam.black_box.result import MinimizeResult
from bayesadam.black_box.search import Search

CONVERGED, EXHAUSTED, STOPPED = 0, 1, 2
MESSAGES = {
    CONVERGED: "A tolerance was met.",
    EXHAUSTED: "The maximum number of function evaluations was made.",
    STOPPED: "The callback stopped the minimisation.",
}
AGAIN = 10
"""Number of steps of a noisy function after which the points of one step are evaluated twice."""
FLAT = 10
"""Number of steps over which ``ftol`` is tested."""


class Best:
    """The best point seen.

    Args:
        function: The function; it is evaluated at its start.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self.point = function.start
        self.value = float(function(function.start[None]))

    def look(self, points: Tensor) -> Tensor:
        """Values at points ``(batch, n)``, the best of which is recorded."""
        values = self._function(points)
        at = int(values.argmin())
        if values[at] < self.value:
            self.point, self.value = points[at], float(values[at])
        return values


class Run:
    """One minimisation; calling it makes the steps.

    Args:
        function: The function.
        best: The best point so far.
        search: The Gaussian ``q``.
        budget: Largest number of evaluations.
        narrow: Largest standard deviation of ``q`` below which it has converged.
        flat: Largest range of the values of ``FLAT`` steps at which it has converged, too.
        callback: Callback, see :func:`bayesadam.minimize`.
    """

    def __init__(
        self,
        function: Function,
        best: Best,
        search: Search,
        *,
        budget: int,
        narrow: float,
        flat: float,
        callback: Callable[..., Any] | None,
    ) -> None:
        self._function, self._best, self._search, self._budget = function, best, search, budget
        self._narrow, self._flat, self._callback = narrow, flat, callback
        self._named = callback is not None and _takes_result(callback)
        self._steps = 0
        self._value = best.value
        self._ranges: deque[tuple[float, float]] = deque(maxlen=FLAT)

    def __call__(self) -> MinimizeResult:
        """Make the steps, and then evaluate the mean of ``q``."""
        status = EXHAUSTED
        while self._step():
            if self._converged():
                status = CONVERGED
                break
            if self._stops():
                status = STOPPED
                break
        self._finish(every=status == EXHAUSTED)
        return self._result(status)

    def _step(self) -> bool:
        """Make a step if there are evaluations for it and one more; return whether it was made."""
        search, twice = self._search, self._search.noisy and self._steps % AGAIN == 0
        if self._function.nfev + 2 * search.pairs * (1 + twice) >= self._budget:
            return False
        eps, points = search.draw(self._steps)
        values = self._best.look(points)
        if twice:
            again = self._best.look(points)
            search.reliability.observe(values, again)
            values = 0.5 * (values + again)
        search.update(eps, values)
        self._steps += 1
        self._ranges.append((float(values.min()), float(values.max())))
        self._value = float(values.mean()) if search.noisy else self._best.value
        return True

    def _converged(self) -> bool:
        if float(self._search.std.max()) < self._narrow:
            return True
        lowest, highest = min(low for low, _ in self._ranges), max(high for _, high in self._ranges)
        return len(self._ranges) == FLAT and highest - lowest <= self._flat

    def _stops(self) -> bool:
        """Whether the callback stops the minimisation."""
        if self._callback is None:
            return False
        result = self._result(EXHAUSTED)
        try:
            said = self._callback(intermediate_result=result) if self._named else self._callback(result.x)
        except StopIteration:
            return True
        single = isinstance(said, np.generic | np.ndarray | Tensor) and math.prod(said.shape) == 1
        return (said.item() if single else said) is True

    def _finish(self, *, every: bool) -> None:
        """Evaluate the mean of ``q``; with ``every``, all remaining evaluations are made there."""
        left = self._budget - self._function.nfev
        if left < 1:
            return
        count = left if every else 1
        if self._search.noisy:
            self._value = float(self._function(self._search.mean.expand(count, -1)).mean())
        else:
            _, points = self._search.draw(self._steps)
            self._best.look(torch.cat([self._search.mean[None], points])[:count])
            self._value = self._best.value

    def _result(self, status: int) -> MinimizeResult:
        search, shown = self._search, self._function.shown
        covariance, size = search.covariance, len(search.mean)
        return MinimizeResult(
            x=shown(search.mean if search.noisy else self._best.point),
            fun=self._value,
            mean=shown(search.mean),
            std=shown(search.std),
            covariance=None if covariance is None else shown(covariance, (size, size)),
            nfev=self._function.nfev,
            nit=self._steps,
            success=status == CONVERGED,
            status=status,
            message=MESSAGES[status],
            noisy=search.noisy,
        )


def _takes_result(callback: Callable[..., Any]) -> bool:
    """Whether a callback's only argument has the name that SciPy uses for its result."""
    try:
        return list(inspect.signature(callback).parameters) == ["intermediate_result"]
    except (TypeError, ValueError):  # a callable without a signature
        return False
