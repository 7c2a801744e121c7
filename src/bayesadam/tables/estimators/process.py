"""A Gaussian process that complements a regressor's networks; it is better at smooth targets with little noise.

Its kernel is a squared exponential with a length for every input, plus a linear one, plus noise. Lengths and
variances maximise the marginal likelihood (Rasmussen and Williams 2006, section 5.4.1), by scikit-learn.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

from bayesadam.tables.estimators import plan
from bayesadam.tables.estimators.clock import Clock
from bayesadam.tables.estimators.linear import BEYOND

Floats = NDArray[Any]

FEWEST, MOST = 40, 2_000
"""Minimum and maximum number of rows for a process."""

KERNEL_ROWS = 200
"""Maximum number of rows to which the kernel is fitted; this takes most of the time."""

LENGTHS = 12
"""Maximum number of inputs that have a length each. More inputs share one."""

SHORT = 0.1
"""Length of one input from which the fit begins again if the likelihood is larger there than at its end, as it is for a
time with seasons. The other lengths and the variances are those at its start or at its end.
"""

LONGEST = 1e3
"""Largest length, with which an input has no influence."""

RARE = 0.05
"""Share of rows with another value than the median up to which the length of an input begins at ``LONGEST``. These rows
are far from the others in standardised inputs, so that the likelihood hardly depends on a shorter length.
"""

AT_ONCE = 2**22
"""Maximum size of an intermediate result, which limits the number of rows that are predicted together."""


@dataclass(frozen=True)
class ProcessPart:
    """The mean of two Gaussian processes of the same rows, which extrapolates for ``BEYOND`` ranges of the inputs.

    Attributes:
        low: Smallest inputs, ``(D,)``; smaller ones are predicted like these.
        high: Largest inputs, ``(D,)``.
        rows: The inputs, ``(N, D)``.
        length: Lengths of both kernels, ``(2, D)``.
        coefficient: Coefficients of both kernels at the rows, ``(2, N, K)``.
        slope: Slopes of the sum of both linear parts, ``(D, K)``.
        intercept: Intercepts, ``(K,)``.
    """

    low: Floats
    high: Floats
    rows: Floats
    length: Floats
    coefficient: Floats
    slope: Floats
    intercept: Floats

    def outputs(self, inputs: Floats) -> Floats:
        """Return the predictive means, ``(N, K)``, for standardised inputs ``(N, D)``."""
        at_once = max(1, AT_ONCE // len(self.rows))
        parts = [self._outputs(inputs[first : first + at_once]) for first in range(0, len(inputs), at_once)]
        return np.concatenate(parts)

    def _outputs(self, inputs: Floats) -> Floats:
        clipped = np.clip(inputs.astype(np.float64), self.low, self.high)
        found = clipped @ self.slope + self.intercept
        for length, coefficient in zip(self.length, self.coefficient, strict=True):
            found += RBF(length)(clipped, self.rows) @ coefficient
        return np.asarray(found)


def process_parts(
    inputs: Floats, targets: Floats, weight: Floats, divided: plan.Plan, clock: Clock
) -> Iterator[tuple[ProcessPart, Floats]]:
    """Fit Gaussian processes, with predictions of rows that neither the process nor its kernel has seen.

    One kernel is fitted to the even folds and one to the odd folds. With the kernel of the other folds, the processes
    predict each fold from all rows that are not in it, in closed form (Rasmussen and Williams 2006, eq. 5.12). The
    weights of the rows divide the variance of their noise. The kernels do not depend on them.

    Args:
        inputs: Standardised, ``(N, D)``.
        targets: Standardised, ``(N, K)``, with one kernel for all.
        weight: Weights of the rows, ``(N,)``.
        divided: The rows that the members leave out.
        clock: The time for both processes.

    Yields:
        The mean of both processes with predictions ``(N, K)``; nothing if there are too few or too many rows, or all
        members leave out the same rows.

    Raises:
        OutOfTimeError: There is not enough time.
    """
    odd = divided.fold % 2 == 1
    if not FEWEST <= len(inputs) <= MOST or divided.shared or min(odd.sum(), (~odd).sum()) < FEWEST // 4:
        return
    rows = inputs.astype(np.float64)
    slope, intercept = np.zeros((rows.shape[1], targets.shape[1])), np.zeros(targets.shape[1])
    unseen = np.empty(targets.shape)
    lengths, coefficients, check = [], [], clock.rounds(2)
    for half in (odd, ~odd):
        check()
        signal, *length, linear, noise = _kernel(rows[half], targets[half])
        scale = np.broadcast_to(length, rows.shape[1])
        covariance = signal * RBF(scale)(rows, rows) + linear * (1.0 + rows @ rows.T)
        inverse = np.linalg.inv(covariance + np.diag(noise * weight.mean() / weight))
        coefficient = inverse @ targets
        for fold in np.unique(divided.fold[~half]):
            own = divided.fold == fold
            unseen[own] = targets[own] - np.linalg.solve(inverse[np.ix_(own, own)], coefficient[own])
        lengths.append(scale)
        coefficients.append(0.5 * signal * coefficient)
        slope += 0.5 * linear * rows.T @ coefficient
        intercept += 0.5 * linear * coefficient.sum(0)
    low, high = rows.min(0), rows.max(0)
    reach = BEYOND * (high - low)
    ends = low - reach, high + reach
    yield ProcessPart(*ends, rows, np.stack(lengths), np.stack(coefficients), slope, intercept), unseen


def _kernel(rows: Floats, targets: Floats) -> Floats:
    """Return the variance of the signal, its length or lengths, and the variances of the linear part and the noise."""
    used = np.random.default_rng(0).permutation(len(rows))[:KERNEL_ROWS]
    columns = rows.shape[1]
    length = np.full(columns if columns <= LENGTHS else 1, np.sqrt(columns))
    if len(length) == columns:
        length[(rows[used] != np.median(rows[used], axis=0)).mean(0) <= RARE] = LONGEST
    kernel = (
        ConstantKernel(1.0, (1e-3, 1e3)) * RBF(length, (SHORT, LONGEST))
        + ConstantKernel(0.1, (1e-5, 1e2)) * DotProduct(1.0, "fixed")
        + WhiteKernel(0.1, (1e-6, 1e1))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound: the input has no influence
        fitted = GaussianProcessRegressor(kernel).fit(rows[used], targets[used])
        found = fitted.kernel_.theta
        shorter = [_with_length(theta, own) for theta in (found, kernel.theta) for own in range(len(length))]
        start = max([found, *shorter], key=fitted.log_marginal_likelihood)
        if start is not found:
            better = fitted.kernel_.clone_with_theta(start)
            found = GaussianProcessRegressor(better).fit(rows[used], targets[used]).kernel_.theta
    return np.asarray(np.exp(found))


def _with_length(theta: Floats, own: int) -> Floats:
    found = theta.copy()
    found[1 + own] = math.log(SHORT)
    return found
