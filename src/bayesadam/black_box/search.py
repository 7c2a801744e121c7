"""The Gaussian ``q`` of a minimisation, and its natural-gradient step from values alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.black_box.rates import AdaptiveRate, Reliability


def utilities(values: Tensor) -> Tensor:
    """Rank-based values of the points of a step: an increasing function of the ranks, negative for good points, with
    sum 0.

    The better half is weighted by the logarithm of the rank (Wierstra et al. 2014, section 3.1); equal values have
    equal utilities.
    """
    count = len(values)
    ranks = torch.arange(1, count + 1, dtype=torch.float64)
    weights = (math.log(count / 2 + 1) - ranks.log()).clamp_min(0.0)
    weights = 1.0 / count - weights / weights.sum()
    levels, which, sizes = torch.unique(values, return_inverse=True, return_counts=True)
    by_level = torch.zeros(len(levels), dtype=torch.float64)
    ordered = which[values.argsort(stable=True)]
    shaped: Tensor = (by_level.index_add(0, ordered, weights) / sizes)[which]
    return shaped


def matrix_rate(size: int) -> float:
    """Rate of the shape of a full precision: 5/3 of that of Wierstra et al. 2014 (xNES)."""
    return min(1.0, (3.0 + math.log(size)) / (size * math.sqrt(size)))


def vector_rate(size: int) -> float:
    """Rate of the shape of a diagonal precision: twice that of Wierstra et al. 2014 (SNES)."""
    return min(1.0, 0.4 * (3.0 + math.log(size)) / math.sqrt(size))


def reflected(points: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Reflect points ``(..., n)`` at the bounds, repeatedly if necessary; points between the bounds do not change.

    If the function falls towards a bound, the function that is continued in this way has its minimum there, and ``q``
    narrows.
    """
    width = upper - lower
    between = lower + (width - (torch.remainder(points - lower, 2.0 * width) - width).abs())
    above, below = lower + (points - lower).abs(), upper - (upper - points).abs()
    folded = torch.where(width.isfinite(), between, torch.where(lower.isfinite(), above, below))
    outside = (points < lower) | (points > upper)
    return torch.where(outside, torch.minimum(torch.maximum(folded, lower), upper), points)


class Search:
    """A Gaussian ``N(m, A A')`` that minimises ``E_q[u(f)]``, ``u`` the :func:`utilities`.

    The step is VON's at temperature 0, that is VAN's (Khan et al. 2018, eqs. 22-24, with the correction that keeps the
    precision positive). Gradient and Hessian of the expectation come from values at ``x = m + A eps`` in place of
    derivatives, by Stein's identities::

        g = A^-T sum_k u_k eps_k                      H = A^-T sum_k u_k (eps_k eps_k' - I) A^-1
        P <- P + R + R P^-1 R / 2                     R = r_scale (trace part of H) + r_shape (the rest)
        m <- m - r_mean P^-1 g                        P = (A A')^-1

    If ``A`` is diagonal, so is ``H``, which then uses only the diagonal of the outer products. The rates of a step are
    1 for the mean and, for a matrix, 1/2 for the scale; for noisy values they are multiplied by the factors of
    :mod:`bayesadam.black_box.rates`. The widths are divided by the factor of the mean's rate, since a slower mean can
    use wider samples.

    Args:
        mean: Initial mean, ``(n,)`` in float64.
        widths: Initial standard deviations, ``(n,)``.
        lower: Lower bounds ``(n,)``; points and means beyond the bounds are :func:`reflected`.
        upper: Upper bounds ``(n,)``.
        full: Whether ``A`` is a matrix.
        pairs: Number of antithetic pairs of points per step.
        noisy: Whether values are noisy.
        seed: Seed of the points.
    """

    def __init__(
        self,
        mean: Tensor,
        widths: Tensor,
        lower: Tensor,
        upper: Tensor,
        *,
        full: bool,
        pairs: int,
        noisy: bool,
        seed: int,
    ) -> None:
        size = len(mean)
        self.mean, self.full, self.pairs, self.noisy = mean.clone(), full, pairs, noisy
        self._factor = torch.diag(widths) if full else widths.clone()
        self._lower, self._upper, self._seed = lower, upper, seed
        self._shape_rate = matrix_rate(size) if full else vector_rate(size)
        self._scale_rate = 0.5 if full else 1.0
        self.reliability = Reliability()
        self._of_mean = AdaptiveRate(0.1, 1.4)
        self._of_scale = AdaptiveRate(0.1, 1.4)
        self._of_shape = AdaptiveRate(0.03, 1.4 * self._shape_rate)
        self._factor_of_mean = 1.0

    @property
    def std(self) -> Tensor:
        """Standard deviations ``(n,)``."""
        return self._factor.square().sum(1).sqrt() if self.full else self._factor

    @property
    def covariance(self) -> Tensor | None:
        """Covariance ``(n, n)``; ``None`` if it is diagonal."""
        return self._factor @ self._factor.mT if self.full else None

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        """Draw standard normals ``(2 pairs, n)``, whose second half is the negative of the first, and the points
        they give.
        """
        half = noise.normal(self._seed, step, 0, 0, (self.pairs, len(self.mean)), dtype=torch.float64)
        eps = torch.cat([half, -half])
        moved = eps @ self._factor.mT if self.full else eps * self._factor
        return eps, self._inside(self.mean + moved)

    def update(self, eps: Tensor, values: Tensor) -> None:
        """Make one step, from the values at the points of :meth:`draw`."""
        shaped = utilities(values)
        gradient = shaped @ eps
        if self.full:
            hessian = (eps * shaped[:, None]).mT @ eps  # the identity drops out: utilities have the sum 0
            scale = hessian.diagonal().mean()
            identity = torch.eye(len(self.mean), dtype=torch.float64)
        else:
            hessian = shaped @ eps.square()
            scale, identity = hessian.mean(), torch.ones_like(hessian)
        shape = self._shape_rate * (hessian - scale * identity)
        of_mean, of_scale, of_shape = self._rates(gradient, scale, shape)
        change = of_shape * shape + of_scale * self._scale_rate * scale * identity
        if self.full:
            values_of_change, vectors = torch.linalg.eigh(change)
            precision = 1.0 + values_of_change + 0.5 * values_of_change.square()
            move = self._factor @ (vectors @ ((vectors.mT @ gradient) / precision))
            self._factor = self._factor @ (vectors * precision.rsqrt()) @ vectors.mT
        else:
            precision = 1.0 + change + 0.5 * change.square()
            move = self._factor * gradient / precision
            self._factor = self._factor * precision.rsqrt()
        self.mean = self._inside(self.mean - of_mean * move)
        self._factor = self._factor * (self._factor_of_mean / of_mean)
        self._factor_of_mean = of_mean

    def _rates(self, gradient: Tensor, scale: Tensor, shape: Tensor) -> tuple[float, float, float]:
        if not self.noisy:
            return 1.0, 1.0, 1.0
        whole = self.reliability.value
        found = self._of_mean(gradient), self._of_scale(scale), self._of_shape(shape)
        of_mean, of_scale, of_shape = (whole + (1.0 - whole) * rate for rate in found)
        return of_mean, of_scale, of_shape

    def _inside(self, points: Tensor) -> Tensor:
        return reflected(points, self._lower, self._upper)
