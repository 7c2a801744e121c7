"""The entry point of black-box minimisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bayesadam.black_box.function import Function, bounds_of, widths_of
from bayesadam.black_box.result import MinimizeResult
from bayesadam.black_box.run import Best, Run
from bayesadam.black_box.search import Search
from bayesadam.checks import check, check_nonfinite, is_whole

LARGEST_MATRIX = 50
"""Number of variables up to which the covariance is a full matrix by default."""


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

    A Gaussian ``q`` is moved and narrowed so that the expectation of the function under it falls (Khan et al. 2018,
    section 4). The steps are natural-gradient steps of VAN, with gradient and curvature of the expectation estimated
    from the values at antithetic pairs of points. Only the ranks of the values are used, so the steps do not depend on
    the scale of the function; only ``ftol`` does. With a full covariance this is a natural evolution strategy (Wierstra
    et al. 2014); if the function is noisy, its learning rates follow the signal-to-noise ratio (Nomura et al. 2023).

    Args:
        f: The function. It is called with a point like ``x0`` (a tensor if ``x0`` is one, otherwise a NumPy array) and
            returns a number. It is not differentiated.
        x0: Initial point: a tensor, an array, a list or a number, of any shape.
        std: Initial standard deviations of ``q``, one number or as many as ``x0`` has. A good value is a quarter of the
            range in which the minimum is expected. The default is a quarter of the distance of the bounds, or 1 without
            bounds.
        bounds: One pair (lower, upper) for each number of ``x0``, with ``None`` for no bound, or SciPy's ``Bounds``.
            The function is never evaluated outside of them: they are rounded inwards to the dtype of ``x0``. An ``x0``
            that is a bound rounded to its dtype is moved inside.
        maxfev: Largest number of points to evaluate; default 500 for each number of ``x0``. Unless a tolerance is met
            first, exactly this many points are evaluated, even if it is not a multiple of the number of points per
            step.
        xtol: Tolerance of the widths: stop when the largest standard deviation of ``q`` is below this fraction of the
            largest initial one.
        ftol: Tolerance of the values: stop when all values of 10 successive steps lie in an interval of this length. It
            is an absolute tolerance in the units of the function. Use 0 if the values are tiny, since a function that
            varies by less than the default everywhere is considered flat.
        pairs: Number of pairs of points per step, at least 2; default half of ``4 + 3 log(n)``, and twice as many if
            the function is noisy.
        covariance: ``"full"`` or ``"diagonal"``; by default full up to 50 numbers. The time of a step with a full
            covariance grows as ``n**3``; a diagonal one is faster if the numbers of ``x0`` act separately.
        noisy: Whether the function returns different values at one point; by default it is evaluated twice at ``x0`` to
            find out. For a noisy function, steps become shorter where noise dominates, which is measured by evaluating
            the points of every tenth step twice. The result is then the mean of ``q``, since the best value seen is
            biased.
        nonfinite: ``"raise"`` an error for a value that is NaN or infinite, or ``"skip"`` the point: it ranks behind
            all others, for constraints.
        vectorized: Whether the function takes many points at once, ``(batch, *x0.shape)``, and returns ``(batch,)``.
        seed: Seed of the points; everything else is deterministic.
        callback: Function that is called after every step: with a :class:`MinimizeResult` if its only argument is named
            ``intermediate_result``, otherwise with the best point, as in SciPy. It stops the minimisation by returning
            True (also of NumPy, or as a tensor) or raising ``StopIteration``.

    Returns:
        The best point, its value, the widths of ``q``, and the attributes of SciPy's ``OptimizeResult``.

    Raises:
        ValueError: An argument is out of its range, ``x0`` is outside of the bounds, or the function does not return
            one number for each point.
        FloatingPointError: A value is NaN or infinite, unless ``nonfinite="skip"``.
    """
    check("vectorized", vectorized, "True or False", lambda v: v is True or v is False)
    check("noisy", noisy, "True, False or None", lambda v: v is None or v is True or v is False)
    covariances = ("full", "diagonal", None)
    check("covariance", covariance, f"one of {covariances}", lambda v: v in covariances, words=True)
    check_nonfinite(nonfinite)
    check("xtol", xtol, "a finite number of at least 0", lambda v: 0 <= v < math.inf)
    check("ftol", ftol, "a finite number of at least 0", lambda v: 0 <= v < math.inf)
    check("maxfev", maxfev, "a whole number of at least 1", lambda v: v is None or is_whole(v))
    check("pairs", pairs, "a whole number of at least 2", lambda v: v is None or is_whole(v, 2))
    check("seed", seed, "a whole number in [0, 2**64)", lambda v: is_whole(v, 0) and v < 2**64)
    check("callback", callback, "None or callable", lambda v: v is None or callable(v))
    function = Function(f, x0, vectorized=vectorized, nonfinite=nonfinite)
    lower, upper = bounds_of(bounds, function.start, function.dtype)
    start = function.start = function.start.clamp(lower, upper)
    size = len(start)
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
