"""Likelihoods of counts, with the log of the mean as output."""

from __future__ import annotations

import math

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from bayesadam.functional.special import betainc, log_mixed, log_poisson, stirling_error
from bayesadam.likelihoods.base import Likelihood
from bayesadam.likelihoods.parameters import check_shape, check_values, diagonal_factor, set_log, summed

POISSON = 1e18
"""Inverse of the dispersion from which the density is that of a Poisson distribution."""

MANY = 1e9
"""Count above which the distribution function of the negative binomial distribution is an approximation."""


class _Counts(Likelihood):
    """Base class for integer targets that are not negative, of the output's shape."""

    discrete = True

    def check(self, output: Tensor, target: Tensor) -> None:
        """Check that the target has the output's shape, with integer values that are not negative."""
        check_shape(output.shape, target)
        fine = (target >= 0) & (target < torch.inf)
        if target.is_floating_point():
            fine &= target == target.floor()
        check_values(target, fine, "whole and not negative")


class Poisson(_Counts):
    """Poisson likelihood with rate ``exp(output)``: counts whose variance is their mean.

    The output is the log rate, in the logarithm of counts per data point. Output and target are ``(N,)``, or ``(N, ...,
    D)`` with ``D`` counts, independent given the output, whose log densities are summed. For an exposure (a time or an
    area), add its logarithm to the network's output.
    """

    def distribution(self, output: Tensor) -> Distribution:
        """``torch.distributions.Poisson``."""
        return distributions.Poisson(output.exp(), validate_args=False)

    def element_log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """``y output - exp(output) - log y!`` of every count, without the difference of two large numbers."""
        return self._terms(output, output, target)

    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        """Distribution function by the incomplete gamma function, in float64."""
        whole = value.double().floor()
        below = torch.special.gammaincc(whole.clamp_min(0.0) + 1.0, output.double().exp())
        return torch.where(whole < 0, 0.0, below)

    @torch.no_grad()
    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """``y - exp(output)``."""
        return target.to(output.dtype) - output.exp()

    @torch.no_grad()
    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """Square roots of the rates, ``(N, P, 1, 1)``; the squares are the exact second derivative."""
        return diagonal_factor((0.5 * output).exp())

    def expected_log_density(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """Expected log density in closed form; the expected rate is the mean of a log-normal variable."""
        terms = self._terms(mean, mean + 0.5 * variance, target)
        return summed(terms, target)

    def _terms(self, output: Tensor, log_rate: Tensor, target: Tensor) -> Tensor:
        """Terms of the log density from an expected output and the logarithm of the expected rate."""
        some, counts, log_counts = _positive(target, output)
        none = -torch.where(some, 0.0, log_rate).exp()
        output, log_rate = (torch.where(some, value - log_counts, 0.0) for value in (output, log_rate))
        return torch.where(some, log_poisson(counts, output, log_rate), none)


class NegativeBinomial(_Counts):
    """Negative binomial likelihood: counts with the mean ``m = exp(output)`` and the variance ``m + dispersion m^2``.

    The output is the log mean, in the logarithm of counts per data point. Output and target are ``(N,)``, or ``(N, ...,
    D)`` with ``D`` counts, independent given the output, whose log densities are summed. It is a Poisson distribution
    whose rate has a gamma distribution; as the dispersion goes to 0 it becomes :class:`Poisson`.

    Args:
        dispersion: One number for all outputs, or a sequence or tensor with one per output; dimensionless.
        learned: Whether to make it a parameter (``log_dispersion``), to be given to the optimiser in a group with
            ``perturb=False`` and a larger ``lr``.

    Raises:
        ValueError: The dispersion is not positive.
    """

    log_dispersion: Tensor

    def __init__(self, dispersion: float | Tensor = 1.0, *, learned: bool = False) -> None:
        super().__init__()
        set_log(self, "dispersion", dispersion, learned=learned)

    @property
    def dispersion(self) -> Tensor:
        """Squared coefficient of variation of the rate; 0-d or one per output."""
        return self.log_dispersion.exp()

    def distribution(self, output: Tensor) -> Distribution:
        """``torch.distributions.NegativeBinomial``."""
        log_dispersion = self.log_dispersion.to(output)
        return distributions.NegativeBinomial(
            (-log_dispersion).exp(), logits=output + log_dispersion, validate_args=False
        )

    def element_log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density of every count.

        It is the saddle-point form of Loader (2000). PyTorch's density subtracts two large numbers for a small
        dispersion or a large count: in float32 it is wrong by 0.7 at a dispersion of 1e-6.
        """
        log_inverse = (-self.log_dispersion.to(output)).clamp_max(math.log(POISSON))
        inverse = log_inverse.exp()
        some, counts, log_counts = _positive(target, output)
        logits = output - log_inverse
        far = logits > 0
        small = (torch.where(far, 0.0, output).exp() / inverse).log1p()
        none = -inverse * torch.where(far, torch.logaddexp(logits, torch.zeros_like(logits)), small)
        # `rest` is the share of the inverse dispersion in the sum of count and inverse dispersion.
        difference = output - log_counts
        log_share, log_rest = -(inverse / counts).log1p(), -(counts / inverse).log1p()
        deviance = counts * log_mixed(log_share, log_rest, -difference)
        deviance = deviance + inverse * log_mixed(log_rest, log_share, difference)
        errors = stirling_error(inverse + counts) - stirling_error(inverse) - stirling_error(counts)
        constant = 0.5 * (log_rest - log_counts - math.log(2.0 * math.pi))
        return torch.where(some, constant + errors - deviance, none)

    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        """Distribution function by the incomplete beta function, in float64.

        Above a billion it is that of the gamma distribution with the same mean and variance, at the middle between this
        count and the next; the error is below 1e-5.
        """
        log_dispersion = self.log_dispersion.to(output.device, torch.float64)
        whole, logits = value.double().floor(), output.double() + log_dispersion
        many, share = whole > MANY, (-logits).sigmoid()
        few = torch.where(many, 0.0, whole.clamp_min(0.0))
        below = betainc((-log_dispersion).exp(), few + 1.0, share, logits.sigmoid())
        shape = (output.double() + torch.nn.functional.logsigmoid(-logits)).exp()
        below = torch.where(many, torch.special.gammainc(shape, (whole + 0.5) * share), below)
        return torch.where(whole < 0, 0.0, below)

    @torch.no_grad()
    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """``(y - m) / (1 + dispersion m)``."""
        log_dispersion = self.log_dispersion.to(output)
        logits = output + log_dispersion
        return target.to(output.dtype) * (-logits).sigmoid() - logits.sigmoid() * (-log_dispersion).exp()

    @torch.no_grad()
    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """Square roots of the expected second derivative ``m / (1 + dispersion m)``, ``(N, P, 1, 1)``."""
        logits = output + self.log_dispersion.to(output)
        return diagonal_factor((0.5 * (output + torch.nn.functional.logsigmoid(-logits))).exp())


def _positive(target: Tensor, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether counts are positive, the counts with ones in place of zeros, and their logarithms."""
    counts = target.to(output.dtype).clamp_min(1.0)
    return target > 0, counts, counts.log()
