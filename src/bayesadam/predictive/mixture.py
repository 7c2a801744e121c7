"""The predictive distribution of any likelihood: a mixture of what it says at several outputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from bayesadam.likelihoods import Likelihood, MissingCapabilityError
from bayesadam.likelihoods.base import seeded

DRAWS = 1024
"""Draws whose quantiles are those of a mixture with an unknown distribution function."""

HALVINGS = 70
"""Of a bracket; it is then as short as float64 tells."""


class MixturePredictive:
    """An equal mixture of a likelihood at several outputs: one per posterior sample, or draws of Gaussian outputs.

    What the likelihood does not say of the target (see :class:`bayesadam.likelihoods.Likelihood`) is missing here:
    :meth:`log_prob` needs nothing but a density, ``mean`` and the variances need ``moments``, :meth:`quantile` needs
    ``cdf`` or ``sample``, :meth:`sample` needs ``sample``; what is missing raises
    :class:`bayesadam.likelihoods.MissingCapabilityError`.

    Args:
        outputs: Of the network, ``(S, N, ...)``.
        likelihood: What they mean; a copy is kept.
        independent: The outputs of different data points were drawn independently: their joint density is not known.
    """

    def __init__(self, outputs: Tensor, likelihood: Likelihood, *, independent: bool = False) -> None:
        self.outputs = outputs
        self.likelihood = copy.deepcopy(likelihood).requires_grad_(False)
        self.independent = independent

    def __repr__(self) -> str:
        count, *shape = self.outputs.shape
        kind = type(self.likelihood).__name__
        return f"{type(self).__name__}({kind}, {tuple(shape)}, {count} component{'s' * (count != 1)})"

    @property
    def device(self) -> torch.device:
        """Where the prediction is, and targets must be."""
        return self.outputs.device

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the components."""
        return self.likelihood.moments(self.outputs)

    @cached_property
    def mean(self) -> Tensor:
        """Predictive mean, ``(N,)`` or ``(N, D)``, in the units of the targets."""
        return self._moments[0].mean(0)

    @cached_property
    def epistemic(self) -> Tensor:
        """Variance of ``E[y | output]`` over the components: what more data would remove.

        The unbiased estimate; 0 if there is only one.
        """
        means = self._moments[0]
        return means.var(0) if len(means) > 1 else torch.zeros_like(self.mean)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean of ``Var[y | output]`` over the components: what more data would not remove."""
        return self._moments[1].mean(0)

    @cached_property
    def variance(self) -> Tensor:
        """Total variance: epistemic and aleatoric."""
        return self.epistemic + self.aleatoric

    def log_prob(self, target: Tensor) -> Tensor:
        """Pointwise log density: ``log mean_s p(y_n | x_n, theta_s)`` of every data point, ``(N,)``, in nats."""
        return _log_mean_exp(self._log_densities(target))

    def joint_log_likelihood(self, target: Tensor) -> Tensor:
        """``log mean_s prod_n p(y_n | x_n, theta_s)``, 0-d: of all data points together, not divided by N.

        Raises:
            ValueError: Outputs of different data points were drawn independently.
        """
        if self.independent:
            raise ValueError(
                "method must be 'monte_carlo' for the joint log-likelihood, got a predictive of every data point by "
                "itself"
            )
        return _log_mean_exp(self._log_densities(target).double().flatten(1).sum(-1))

    def sample(self, count: int = 1, *, seed: int = 0) -> Tensor:
        """Draws of the targets, ``(count, N)`` or ``(count, N, D)``: each of a component that is drawn, too.

        A draw has one component for all data points, so that it is one function of the inputs, with noise.

        Args:
            count: Number of draws.
            seed: Of torch's generators, which are what they were afterwards.
        """
        return self.likelihood.sample(self.outputs[self._components(count, seed)], seed=seed + 1)

    def quantile(self, probabilities: float | Sequence[float] | Tensor) -> Tensor:
        """Quantiles of the mixture, ``(Q, N)`` or ``(Q, N, D)``; without the first axis for a single probability.

        By bisection of the mixture's distribution function in float64, if the likelihood has one; of discrete targets
        the least whole number that it reaches the probability at. Else of 1,024 draws.

        Raises:
            ValueError: A probability outside (0, 1).
        """
        levels = torch.as_tensor(probabilities, dtype=torch.float64, device=self.device)
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"probabilities must be in (0, 1), got {probabilities!r}")
        try:
            found = torch.stack([self._bisected(level) for level in levels.flatten()])
        except MissingCapabilityError:
            if not self.likelihood.provides("sample"):
                raise
            each = -(-DRAWS // len(self.outputs))
            draws = [self.likelihood.sample(self.outputs, seed=number).double() for number in range(each)]
            found = torch.cat(draws).quantile(levels.flatten(), dim=0)
        return found.view(*levels.shape, *found.shape[1:]).to(self.outputs.dtype)

    def rescale(self, mean: Tensor | float, std: Tensor | float) -> MixturePredictive:
        """The distribution of ``mean + std * y``: from standardised targets back to their original units.

        Raises:
            MissingCapabilityError: The likelihood is not ``rescaled``.
        """
        factor = torch.as_tensor(std, dtype=self.outputs.dtype, device=self.device)
        shift = torch.as_tensor(mean, dtype=self.outputs.dtype, device=self.device)
        likelihood = self.likelihood.rescaled(factor)
        return MixturePredictive(shift + factor * self.outputs, likelihood, independent=self.independent)

    def _log_densities(self, target: Tensor) -> Tensor:
        """Of every component and data point, ``(S, N)``."""
        self.likelihood.check(self.outputs[0], target)
        return self.likelihood.log_density(self.outputs, target)

    def _components(self, count: int, seed: int) -> Tensor:
        """Numbers of ``count`` components, as even as possible, in random order."""
        with seeded(seed, torch.device("cpu")):
            turns = [torch.randperm(len(self.outputs)) for _ in range(-(-count // len(self.outputs)))]
        return torch.cat(turns)[:count].to(self.device)

    def _bisected(self, level: Tensor) -> Tensor:
        """The quantile at a level, between bounds that are doubled until it is between them."""

        def below(value: Tensor) -> Tensor:
            return self.likelihood.cdf(self.outputs, value).double().mean(0) < level

        center, width = self._start()
        low, high = center - width, center + width
        for _ in range(1100):
            outside = ~below(low)
            if not outside.any():
                break
            low = torch.where(outside, low - 2.0 * (center - low), low)
        for _ in range(1100):
            outside = below(high)
            if not outside.any():
                break
            high = torch.where(outside, high + 2.0 * (high - center), high)
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            under = below(middle)
            low, high = torch.where(under, middle, low), torch.where(under, high, middle)
        if not self.likelihood.discrete:
            return torch.lerp(low, high, 0.5)
        return high.floor()

    def _start(self) -> tuple[Tensor, Tensor]:
        """Centre and width of a first bracket: mean and standard deviation if there are any, 0 and 1 if not."""
        shape = self.likelihood.cdf(self.outputs[:1], self.outputs.new_zeros(())).shape[1:]
        zero = torch.zeros(shape, dtype=torch.float64, device=self.device)
        if not self.likelihood.provides("moments"):
            return zero, zero + 1.0
        mean, variance = self.mean.double(), self.variance.double()
        fine = mean.isfinite() & variance.isfinite() & (variance > 0)
        return torch.where(fine, mean, zero), torch.where(fine, variance.sqrt(), zero + 1.0)


def _log_mean_exp(values: Tensor) -> Tensor:
    return values.logsumexp(0) - math.log(len(values))
