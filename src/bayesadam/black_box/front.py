"""The front door of black-box minimisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bayesadam.black_box.function import Function, bounds_of, widths_of
from bayesadam.black_box.result import MinimizeResult
from bayesadam.black_box.run import Best, Run
from bayesadam.black_box.search import Search
from bayesadam.checks import check, is_whole

LARGEST_MATRIX = 50
"""Numbers up to which the covariance is a matrix by default."""


def minimize(
    f: Callable[[Any], Any],
    x0: Any,
    *,
    std: Any = None,
    bounds: Any = None,
    maxfev: int | None = None,
    xtol: float = 1e-9,
    ftol: float = 1e-12,
    pairs: int | None = None,
    covariance: str | None = None,
    noisy: bool | None = None,
    nonfinite: str = "raise",
    vectorized: bool = False,
    seed: int = 0,
    callback: Callable[..., Any] | None = None,
) -> MinimizeResult:
    """Minimise a function of which only values are known, by variational optimisation.

    A Gaussian ``q`` is moved and narrowed so that ``E_q`` of the function falls (Khan et al. 2018, section 4): the
    natural-gradient step of VAN, with gradient and curvature of the expectation estimated from the values at antithetic
    pairs of points. Values enter by their ranks, so that the scale of the function does not matter. With a full
    covariance it is a natural evolution strategy (Wierstra et al. 2014) whose learning rates, if the function is noisy,
    follow the signal-to-noise ratio (Nomura et al. 2023).

    Args:
        f: The function. It is given a point like ``x0``, a tensor if that is a tensor and else a NumPy array, and
            returns a number. It is not differentiated.
        x0: Where to start: a tensor, an array, a list or a number, of any shape.
        std: Standard deviations of ``q`` at the start, one number or as many as ``x0`` has: about a quarter of the
            range in which the minimum is looked for. By default a quarter of the distance of the bounds, and 1
            without bounds.
        bounds: One pair (lower, upper) for each number of ``x0``, ``None`` for no bound, or SciPy's ``Bounds``. The
            function is never evaluated outside.
        maxfev: The largest number of points to evaluate; default 500 for each number of ``x0``. Points are evaluated
            until it is met exactly, also where a step has another number of points, or a tolerance is met.
        xtol: Stop when the largest standard deviation of ``q`` is below this share of the largest one at the start.
        ftol: Stop when all values of 10 steps in a row lie in an interval of this length.
        pairs: Pairs of points per step, at least 2; default half of ``4 + 3 log(n)``, and twice as many if the
            function is noisy.
        covariance: ``"full"`` or ``"diagonal"``; default full up to 50 numbers. The time of a step of a full one grows
            as ``n**3``; a diagonal one is quicker where the numbers of ``x0`` act separately.
        noisy: Whether the function returns different values at one point; by default it is evaluated at ``x0`` twice
            to find out. If it is noisy, steps become shorter where noise prevails, the points of every tenth step
            are evaluated twice to see that, and the result is the mean of ``q`` and not the best point seen, which
            was lucky.
        nonfinite: ``"raise"``, or ``"worst"``: a value that is NaN or infinite ranks behind all others, for
            constraints.
        vectorized: Whether the function is given many points at once, ``(batch, *x0.shape)``, and returns ``(batch,)``.
        seed: Of the points; everything else is deterministic.
        callback: Called after every step with a :class:`MinimizeResult` if its only argument is named
            ``intermediate_result``, else with the best point, as SciPy does. It stops the minimisation by returning
            True or raising ``StopIteration``.

    Returns:
        The best point, its value, the widths of ``q``, and what SciPy's ``OptimizeResult`` has.

    Raises:
        ValueError: An argument out of its range, ``x0`` outside of the bounds, or a function that does not return one
            number for each point.
        FloatingPointError: A value that is NaN or infinite, unless ``nonfinite="worst"``.
    """
    check("vectorized", vectorized, "True or False", lambda v: v is True or v is False)
    check("noisy", noisy, "True, False or None", lambda v: v is None or v is True or v is False)
    covariances, reactions = ("full", "diagonal", None), ("raise", "worst")
    check("covariance", covariance, f"one of {covariances}", lambda v: v in covariances, words=True)
    check("nonfinite", nonfinite, f"one of {reactions}", lambda v: v in reactions, words=True)
    check("xtol", xtol, "a finite number of at least 0", lambda v: 0 <= v < math.inf)
    check("ftol", ftol, "a finite number of at least 0", lambda v: 0 <= v < math.inf)
    check("maxfev", maxfev, "a whole number of at least 1", lambda v: v is None or is_whole(v))
    check("pairs", pairs, "a whole number of at least 2", lambda v: v is None or is_whole(v, 2))
    check("seed", seed, "a whole number in [0, 2**64)", lambda v: is_whole(v, 0) and v < 2**64)
    check("callback", callback, "None or callable", lambda v: v is None or callable(v))
    function = Function(f, x0, vectorized=vectorized, nonfinite=nonfinite)
    start = function.start
    size = len(start)
    lower, upper = bounds_of(bounds, start)
    widths = widths_of(std, start, lower, upper)
    budget = 500 * size if maxfev is None else int(maxfev)
    usual = math.ceil(2.0 + 1.5 * math.log(size))
    best = Best(function)
    first = best.value
    if noisy is None:
        noisy = budget >= 2 * usual + 3 and float(best.look(start[None])) != first
    search = Search(
        start,
        widths,
        lower,
        upper,
        full=covariance == "full" or (covariance is None and size <= LARGEST_MATRIX),
        pairs=pairs or (2 * usual if noisy else usual),
        noisy=noisy,
        seed=seed,
    )
    narrow = xtol * float(widths.max())
    return Run(function, best, search, budget=budget, narrow=narrow, flat=ftol, callback=callback)()
