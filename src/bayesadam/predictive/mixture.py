"""The predictive distribution of any likelihood: a mixture of its distributions at several network outputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from bayesadam.checks import check_tensor
from bayesadam.functional.generators import seeded
from bayesadam.likelihoods import Likelihood, MissingCapabilityError
from bayesadam.likelihoods.parameters import check_densities, check_equal_shapes
from bayesadam.predictive.base import PredictiveDistribution, variance_of_strata

DRAWS = 1024
"""Number of draws from which quantiles are taken if the distribution function is unknown."""

DOUBLINGS = 1_000
"""Largest number of doublings of a bracket, which is then as wide as float64 allows."""

STEPS = 200
"""Largest number of steps in the search for a zero; 12 to 60 were needed for 500 data points at once."""

FEW = 32
"""Number of components whose quantile of an integer is near that of four times as many or more."""


class MixturePredictive(PredictiveDistribution):
    """An equally weighted mixture of a likelihood at several outputs: posterior samples, or draws of Gaussian outputs.

    Capabilities that the likelihood lacks (see :class:`bayesadam.likelihoods.Likelihood`) are missing here as well:
    ``log_prob`` needs only a density, ``mean`` and the variances need ``moments``, :meth:`quantile` needs ``cdf``
    or ``sample``, and :meth:`sample` needs ``sample``. A missing capability raises
    :class:`bayesadam.likelihoods.MissingCapabilityError`.

    Args:
        outputs: Outputs of the network, ``(S, N, ...)``.
        likelihood: Likelihood of the targets given the outputs; a copy is kept.
        independent: Whether the outputs of different data points were drawn independently, so that their joint density
            is not known.
        strata: Number of strata, such as the components of a mixture, with equally many samples each: output ``s`` is
            from stratum ``s % strata``.
    """

    def __init__(self, outputs: Tensor, likelihood: Likelihood, *, independent: bool = False, strata: int = 1) -> None:
        self.outputs = outputs
        self.likelihood = copy.deepcopy(likelihood).requires_grad_(False).to(outputs.device)
        self.independent = independent
        self.strata = strata

    def __repr__(self) -> str:
        count, *shape = self.outputs.shape
        kind = type(self.likelihood).__name__
        return f"{type(self).__name__}({kind}, {tuple(shape)}, {count} component{'s' * (count != 1)})"

    @property
    def device(self) -> torch.device:
        """Device of the prediction, on which targets must be."""
        return self.outputs.device

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the components."""
        mean, variance = self.likelihood.moments(self.outputs)
        check_equal_shapes("moments", mean, variance)
        return mean, variance

    @cached_property
    def mean(self) -> Tensor:
        """Predictive mean, ``(N,)`` or ``(N, D)``, in the units of the targets."""
        return self._moments[0].mean(0)

    @cached_property
    def epistemic(self) -> Tensor:
        """Epistemic variance: the variance of ``E[y | output]`` over the components, which more data would reduce.

        It is the unbiased estimate of :func:`variance_of_strata`, and 0 if there is only one component.
        """
        return variance_of_strata(self._moments[0], self.strata)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Aleatoric variance: the mean of ``Var[y | output]`` over the components, which more data would not reduce."""
        return self._moments[1].mean(0)

    @cached_property
    def variance(self) -> Tensor:
        """Total variance, the sum of epistemic and aleatoric variance."""
        return self.epistemic + self.aleatoric

    def sample(self, count: int = 1, *, seed: int = 0) -> Tensor:
        """Draw targets, ``(count, N)`` or ``(count, N, D)``, each from a randomly chosen component.

        One draw uses the same component for all data points: with posterior samples it is one function of the inputs,
        plus noise.

        Args:
            count: Number of draws.
            seed: Seed for torch's generators, whose states are restored afterwards.
        """
        return self.likelihood.sample(self.outputs[self._components(count, seed)], seed=seed + 1)

    def cdf(self, target: Tensor) -> Tensor:
        """``P(y <= target)`` of each of the targets, of their shape, in float64.

        Raises:
            MissingCapabilityError: The likelihood has no distribution function.
        """
        check_at_samples(self.likelihood, self.outputs, target)
        return self.likelihood.cdf(self.outputs, target).double().mean(0)

    def quantile(self, probabilities: float | Sequence[float] | Tensor) -> Tensor:
        """Quantiles of the mixture, ``(Q, N)`` or ``(Q, N, D)``; without the first axis for a single probability.

        If the likelihood has a distribution function, it is inverted in float64; for positive targets it is inverted in
        their logarithm, and for discrete targets the quantile is the smallest integer at which it reaches the
        probability. Otherwise quantiles are those of 1,024 draws.

        Raises:
            ValueError: A probability is outside (0, 1).
        """
        levels = self._levels(probabilities)
        try:
            quantiles = torch.stack([self._quantile(level) for level in levels.flatten()])
        except MissingCapabilityError:
            if not self.likelihood.provides("sample"):
                raise
            each = -(-DRAWS // len(self.outputs))
            draws = [self.likelihood.sample(self.outputs, seed=number).double() for number in range(each)]
            between = "higher" if self.likelihood.discrete else "linear"
            quantiles = torch.cat(draws).quantile(levels.flatten(), dim=0, interpolation=between)
        return quantiles.view(*levels.shape, *quantiles.shape[1:]).to(self.outputs.dtype)

    def rescale(self, mean: Tensor | float, std: Tensor | float) -> MixturePredictive:
        """Return the distribution of ``mean + std * y``, which converts standardised targets to their original units.

        Raises:
            MissingCapabilityError: The likelihood cannot be ``rescaled``.
        """
        factor = torch.as_tensor(std, dtype=self.outputs.dtype, device=self.device)
        shift = torch.as_tensor(mean, dtype=self.outputs.dtype, device=self.device)
        likelihood = self.likelihood.rescaled(factor)
        return MixturePredictive(
            shift + factor * self.outputs, likelihood, independent=self.independent, strata=self.strata
        )

    def _log_densities(self, target: Tensor) -> Tensor:
        check_at_samples(self.likelihood, self.outputs, target)
        return check_densities(self.likelihood.log_density(self.outputs, target), self.outputs, target)

    def _components(self, count: int, seed: int) -> Tensor:
        """Numbers of ``count`` components, as evenly distributed as possible, in random order."""
        with seeded(seed, torch.device("cpu")):
            turns = [torch.randperm(len(self.outputs)) for _ in range(-(-count // len(self.outputs)))]
        return torch.cat(turns)[:count].to(self.device)

    def _quantile(self, level: Tensor) -> Tensor:
        """Quantile at one level, from bounds that are doubled until it lies between them; NaN where an output is.

        The distribution function takes the time. For the bounds, and for integers, it is evaluated only for data points
        that are not finished.
        """
        center, width, positive = self._around(level)

        def value(place: Tensor) -> Tensor:
            return torch.where(positive, place.exp(), place)

        def above(place: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
            return self.likelihood.cdf(self.outputs[:, rows], value(place)[rows]).double().mean(0) - level

        def bound(end: Tensor, is_outside: Callable[[Tensor], Tensor]) -> Tensor:
            rows = torch.arange(len(end), device=self.device)
            for _ in range(DOUBLINGS):
                outside = is_outside(above(end, rows))
                if not outside.any():
                    break
                end[rows] = torch.where(outside, (end + 2.0 * (end - center))[rows], end[rows])
                rows = rows[_any_of_row(outside)]
            return end

        low = bound(center - width, lambda above: above >= 0)
        high = bound(center + width, lambda above: above < 0)
        if self.likelihood.discrete:
            quantile = _least_integer(above, low.floor(), high.ceil())
        else:
            quantile = value(zero_between(above, low, high, width))
        return quantile.masked_fill(self._below_zero.isnan(), math.nan)

    def _around(self, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centre and width of the first bracket, and whether they are those of ``log y``.

        The quantile of an integer is near that of a few components, if there are many.
        """
        few = self._few
        if few is None:
            return self._start
        center, width, positive = few._start
        guess = few._quantile(level)
        near = (0.005 * width).clamp_min(0.5)
        finite = guess.isfinite()
        return torch.where(finite, guess - 0.5, center), torch.where(finite, near, width), positive

    @cached_property
    def _few(self) -> MixturePredictive | None:
        """For integers a mixture of a few outputs, evenly spaced among the sorted ones, if there are many."""
        count = len(self.outputs)
        if count < 4 * FEW or not self.likelihood.discrete:
            return None
        places = ((torch.arange(FEW, device=self.device) + 0.5) * (count / FEW)).long()
        return MixturePredictive(self.outputs.sort(0).values[places], self.likelihood)

    @cached_property
    def _below_zero(self) -> Tensor:
        """``P(y <= 0)``, which is NaN where an output is."""
        return self.likelihood.cdf(self.outputs, self.outputs.new_zeros(())).double().mean(0)

    @cached_property
    def _start(self) -> tuple[Tensor, Tensor, Tensor]:
        """Centre and width of the first bracket, and whether they are those of ``log y``.

        They are mean and standard deviation if these are known, otherwise 0 and 1. Where ``P(y <= 0) = 0``, they are
        those of the logarithm of a log-normal variable: quantiles of a skewed distribution differ by orders of
        magnitude, and their errors must be small relative to themselves.
        """
        positive = (self._below_zero <= 0) & (not self.likelihood.discrete)
        center, width = torch.zeros_like(self._below_zero), torch.ones_like(self._below_zero)
        if not self.likelihood.provides("moments"):
            return center, width, positive
        mean, variance = self.mean.double(), self.variance.double()
        relative = (variance / mean.square()).log1p()
        middle = torch.where(positive, mean.log() - 0.5 * relative, mean)
        spread = torch.where(positive, relative, variance).sqrt()
        fine = middle.isfinite() & spread.isfinite() & (spread > 0)
        return torch.where(fine, middle, center), torch.where(fine, spread, width), positive


def check_at_samples(likelihood: Likelihood, outputs: Tensor, target: Tensor) -> None:
    """Raise ``ValueError`` if a target does not fit outputs ``(S, N, ...)``; the message has shapes without ``S``."""
    check_tensor("target", target)
    try:
        likelihood.check(outputs, target)
    except ValueError:
        likelihood.check(outputs[0], target)
        raise


def _any_of_row(mask: Tensor) -> Tensor:
    """Whether a mask ``(N, ...)`` is true for any element of a data point, ``(N,)``."""
    return mask.flatten(1).any(1) if mask.ndim > 1 else mask


def _least_integer(above: Callable[[Tensor, Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Find the least integers in ``(low, high]`` at which a function of a place and rows is not negative.

    Neighbouring numbers are more than 1 apart from 2^53 on, and the quantile of an infinite rate is infinite.
    """
    while True:
        middle = (0.5 * (low + high)).floor()
        rows = _any_of_row((middle > low) & (middle < high)).nonzero().flatten()
        if not len(rows):
            return high + 0.0  # not -0
        reached = above(middle, rows) >= 0
        low[rows] = torch.where(reached, low[rows], middle[rows])
        high[rows] = torch.where(reached, middle[rows], high[rows])


def zero_between(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, scale: Tensor) -> Tensor:
    """Find the zero of an element-wise function between ends of different sign, to 1e-13 of a scale or to rounding.

    It uses Chandrupatla's method (1997): inverse quadratic interpolation where the three last points allow it, and
    bisection otherwise.
    """
    a, b = high, low
    at_a, at_b = function(a), function(b)
    share = torch.full_like(a, 0.5)
    for _ in range(STEPS):
        point = a + share * (b - a)
        value = function(point)
        same = value.sign() == at_a.sign()
        c, at_c = torch.where(same, a, b), torch.where(same, at_a, at_b)
        b, at_b = torch.where(same, b, a), torch.where(same, at_b, at_a)
        a, at_a = point, value
        best = torch.where(at_a.abs() < at_b.abs(), a, b)
        least = (1e-13 * scale + 4e-16 * best.abs()) / (b - a).abs()
        if ((least > 0.5) | (at_a == 0) | (a == b)).all():
            break
        position, rise = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
        quadratic = (rise.square() < position) & ((1.0 - rise).square() < 1.0 - position)
        guess = at_a / (at_b - at_a) * at_c / (at_b - at_c)
        guess = guess + (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
        share = torch.where(quadratic & guess.isfinite(), guess, 0.5)
        share = torch.maximum(torch.minimum(share, 1.0 - least), least).clamp(0.0, 1.0)
    return torch.where(at_a.abs() < at_b.abs(), a, b)
