"""Special functions that torch does not have."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["betainc", "log_mixed", "log_poisson", "log_rising", "stirling_error"]

STEPS = 10_000
"""Largest number of steps of a continued fraction; about the square root of the larger argument is needed."""

LARGE = 32.0
"""Argument from which the error of Stirling's formula is a series, to the rounding of float64."""
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)
_FAR = 20.0


def stirling_error(x: Tensor) -> Tensor:
    """Error of Stirling's formula, ``log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2``, for positive ``x``.

    Densities are written with it, because differences of ``lgamma`` lose all digits for large arguments (Loader 2000,
    "Fast and accurate computation of binomial probabilities"). From 32 on it is the series of DLMF 5.11.1.
    """
    few, inverse = x.clamp_max(LARGE), 1.0 / x.clamp_min(LARGE)
    square = inverse.square()
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    return torch.where(x < LARGE, torch.lgamma(few) - (few - 0.5) * few.log() + few - _HALF_LOG_TWO_PI, series)


def log_poisson(x: Tensor, log_ratio: Tensor, log_expected_ratio: Tensor | None = None) -> Tensor:
    """Log density of a Poisson distribution at ``x > 0``, whole or not, if its rate is ``x exp(log_ratio)``.

    It is the saddle-point form of Loader (2000), which keeps its digits where ``x`` is large and near the rate.

    Args:
        x: Argument.
        log_ratio: Logarithm of the ratio of the rate and ``x``, or its expectation if the rate is random.
        log_expected_ratio: Logarithm of the expected ratio, if the rate is random; the log density is then an
            expectation, too.
    """
    expected = log_ratio if log_expected_ratio is None else log_expected_ratio
    return -0.5 * x.log() - _HALF_LOG_TWO_PI - stirling_error(x) - x * (expected.expm1() - log_ratio)


def log_mixed(log_rest: Tensor, log_share: Tensor, log_ratio: Tensor) -> Tensor:
    """``log(1 + share (exp(log_ratio) - 1))``, to its own digits and without the overflow of the exponential.

    Args:
        log_rest: Logarithm of ``1 - share``.
        log_share: Logarithm of a share in (0, 1).
        log_ratio: Logarithm of a ratio.
    """
    far = (log_ratio > _FAR) | ((log_share > -_LOG_TWO) & (log_ratio.abs() > 1.0))
    near = (log_share.exp() * torch.where(far, 0.0, log_ratio).expm1()).log1p()
    return torch.where(far, torch.logaddexp(log_rest, log_share + log_ratio), near)


def log_rising(x: Tensor, y: Tensor | float) -> Tensor:
    """``log(Gamma(x + y) / Gamma(x)) - y log x``, for positive ``x`` and ``y`` of at least 0, both finite."""
    return (x + y - 0.5) * (y / x).log1p() - y + stirling_error(x + y) - stirling_error(x)


@torch.no_grad()
def betainc(a: Tensor, b: Tensor, x: Tensor, complement: Tensor | None = None) -> Tensor:
    """Regularised incomplete beta function ``I_x(a, b)``, element-wise in float64, without a graph.

    It is the continued fraction of DLMF 8.17.22, evaluated by the modified Lentz method on the side of the mean where
    it converges fast, times a density in the saddle-point form of Loader (2000), see :func:`stirling_error`. For ``a,
    b`` up to 1e4 and ``x`` in [1e-12, 1 - 1e-12] relative errors were below 1e-9. With the complement digits are kept
    also if one parameter is much larger than the other.

    Args:
        a: First parameter, positive.
        b: Second parameter, positive.
        x: Argument in [0, 1].
        complement: ``1 - x``, if it is known to more digits.
    """
    a, b, x = torch.broadcast_tensors(a.double(), b.double(), x.double())  # type: ignore[no-untyped-call]
    rest = 1.0 - x if complement is None else complement.double().expand(x.shape)
    swap = x * (b + 1.0) > rest * (a + 1.0)
    p, q = torch.where(swap, b, a), torch.where(swap, a, b)
    y, z = torch.where(swap, rest, x), torch.where(swap, x, rest)
    total = p + q
    excess = torch.where(y < z, p - total * y, total * z - q)
    share = torch.where(excess > 0.5 * p, (y * (q / p + 1.0)).log(), (-excess / p).log1p())
    deviance = p * share + q * (excess / q).log1p()
    errors = stirling_error(total) - stirling_error(p) - stirling_error(q)
    front = 0.5 * (p.log() - (p / q).log1p()) - _HALF_LOG_TWO_PI + deviance + errors
    part = (front.exp() / _fraction(p, q, y, z, excess)).clamp(0.0, 1.0)
    return torch.where(swap, 1.0 - part, part)


def _fraction(a: Tensor, b: Tensor, x: Tensor, complement: Tensor, excess: Tensor) -> Tensor:
    """Ratio of ``x^a (1 - x)^b / B(a, b)`` and the incomplete beta function, for ``excess = a - (a + b) x``.

    It is the even part of the continued fraction, whose terms do not cancel each other for large ``a`` (Didonato and
    Morris 1992, "Significant digit computation of the incomplete beta function ratios", section 4).
    """
    tiny = 1e-250

    def away(value: Tensor) -> Tensor:
        return torch.where(value.abs() < tiny, tiny, value)

    value = away(a * (excess + 1.0) / (a + 1.0))
    above, below = value, torch.zeros_like(x)
    for n in range(1, STEPS):
        middle, last = a + 2 * n - 1, a + n - 1
        product = n * (b - n) * x
        numerator = last / middle * ((last + b) / middle) * product * x
        denominator = n + product / middle + (last + 1) * (excess + 1.0 + n * (1.0 + complement)) / (middle + 2)
        below = 1.0 / away(denominator + numerator * below)
        above = away(denominator + numerator / above)
        change = above * below
        value = value * change
        if not bool(((change - 1.0).abs() >= 1e-15).any()):  # false also for NaN, which never converges
            break
    return value
