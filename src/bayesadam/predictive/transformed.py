"""The predictive distribution of a target whose transform is Gaussian, in the units of the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from bayesadam.functional.generators import seeded
from bayesadam.functional.moments.quadrature import gauss_hermite
from bayesadam.functional.monotone import Monotone
from bayesadam.likelihoods.parameters import summed
from bayesadam.predictive.base import PredictiveDistribution, check_target
from bayesadam.predictive.gaussian_outputs import GaussianPredictive

NODES = 64
"""Number of nodes of the quadrature for means and variances. If ``f`` has kinks, or the target is censored, means have
errors of up to 1% of the standard deviation, and variances of up to 5%."""


class TransformedPredictive(PredictiveDistribution):
    """``f(y)`` is Gaussian for every data point, with an increasing function ``f`` for each of its targets.

    A target with a least value (``f.least``) is censored there: the probability below it is assigned to the least value
    itself, so that no quantile is smaller, and intervals contain the least value if it is likely. Rows and outputs are
    independent.

    Args:
        base: Distribution of ``f(y)``, with epistemic variances instead of covariances.
        functions: One function for each output of a data point, which is a single one for a mean ``(N,)``.

    Raises:
        ValueError: The number of functions is wrong, or the base has covariances.
    """

    independent = True

    def __init__(self, base: GaussianPredictive, functions: Sequence[Monotone]) -> None:
        count = 1 if base.mean.ndim == 1 else base.mean.shape[-1]
        if len(functions) != count:
            raise ValueError(f"functions must be one for each of {count} outputs, got {len(functions)}")
        if base.epistemic_covariance is not None:
            raise ValueError("base must have epistemic variances, got covariances")
        self.base = base
        self.functions = tuple(functions)
        self._scale = (0.5 * base.log_variances[0].double()).exp()
        ends = torch.tensor([function.least for function in functions], dtype=torch.float64, device=base.device)
        self._least = ends if base.mean.ndim > 1 else ends[0]
        self._mean = base.mean.double()

    def __repr__(self) -> str:
        names = ", ".join(function.name for function in self.functions)
        return f"{type(self).__name__}({tuple(self._mean.shape)}, {names})"

    @property
    def device(self) -> torch.device:
        """Device of the prediction, on which targets must be."""
        return self.base.device

    def transform(self, target: Tensor) -> Tensor:
        """``f(y)``, of the target's shape, in float64."""
        return self._each("__call__", target)

    def inverse(self, value: Tensor) -> Tensor:
        """Return the targets at which ``f`` has this value, in its shape and float64, and not below the least value."""
        return torch.maximum(self._each("inverse", value), self._least)

    @cached_property
    def mean(self) -> Tensor:
        """Predictive mean, ``(N,)`` or ``(N, D)``, in the units of the targets, by Gauss-Hermite quadrature."""
        return self._moments[0]

    @cached_property
    def variance(self) -> Tensor:
        """Total variance of each target, by Gauss-Hermite quadrature."""
        return self._moments[1]

    @cached_property
    def median(self) -> Tensor:
        """Median, in the shape of the mean: the point at which ``f`` is the mean of the Gaussian."""
        return self.at(torch.zeros_like(self._mean))

    @cached_property
    def epistemic(self) -> Tensor:
        """The part of the variance that more data would remove. Its share is taken from the variance of ``f(y)``.

        This is right to first order, if ``f`` is nearly linear over the width of the Gaussian.
        """
        return self.variance * (self.base.epistemic / self.base.variance).nan_to_num()

    @cached_property
    def aleatoric(self) -> Tensor:
        """The rest of the variance."""
        return self.variance - self.epistemic

    def _log_densities(self, target: Tensor) -> Tensor:
        """The joint log density of the targets of every data point, ``(1, N)``, in nats, for targets in their units.

        It is that of the transformed Gaussian, with the slope of ``f``. This also holds at the least value of a target:
        the point mass there is not counted, so that scores are comparable with those of other densities. Below the
        least value it is minus infinity.
        """
        check_target(target, self._mean.shape)
        value = self.transform(target)
        white = (value - self._mean) / self._scale
        terms = -0.5 * white.square() - self._scale.log() - 0.5 * math.log(2.0 * math.pi)
        terms = terms + self._each("log_slope", target)
        possible = value.isfinite() & (target >= self._least)
        terms = torch.where(possible, terms, -torch.inf)
        return summed(terms, target).unsqueeze(0)

    def cdf(self, target: Tensor) -> Tensor:
        """``P(y <= target)`` of each of the targets, of their shape."""
        check_target(target, self._mean.shape)
        below: Tensor = torch.special.log_ndtr((self.transform(target) - self._mean) / self._scale).exp()
        return torch.where(target >= self._least, below, 0.0)

    def quantile(self, probabilities: float | Sequence[float] | Tensor) -> Tensor:
        """Quantiles, ``(Q, N)`` or ``(Q, N, D)``; without the first axis for a single probability.

        Raises:
            ValueError: A probability is not in (0, 1).
        """
        levels = self._levels(probabilities)
        scores: Tensor = torch.special.ndtri(levels)
        return self.at(scores.view(*levels.shape, *[1] * self._mean.ndim).expand(*levels.shape, *self._mean.shape))

    def sample(self, count: int = 1, *, seed: int = 0) -> Tensor:
        """Draw targets, ``(count, N)`` or ``(count, N, D)``, independently for all rows.

        Args:
            count: Number of draws.
            seed: Seed of torch's generators, whose states are restored afterwards.
        """
        with seeded(seed, self.device):
            return self.at(torch.randn(count, *self._mean.shape, dtype=torch.float64, device=self.device))

    def at(self, score: Tensor) -> Tensor:
        """The quantile of the probability that a standard normal variable is below ``score``, ``(..., N)``."""
        return self.inverse(self._mean + self._scale * score)

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        return gauss_hermite(self.at, torch.zeros_like(self._mean), torch.ones_like(self._mean), NODES)

    def _each(self, method: str, values: Tensor) -> Tensor:
        """Apply a method of every function to its own output."""
        if self._mean.ndim == 1:
            transformed: Tensor = getattr(self.functions[0], method)(values)
            return transformed
        pairs = zip(self.functions, values.unbind(-1), strict=True)
        return torch.stack([getattr(function, method)(column) for function, column in pairs], dim=-1)
