"""Likelihoods of positive targets such as durations, amounts and prices."""

from __future__ import annotations

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from bayesadam.functional.special import log_poisson
from bayesadam.likelihoods.base import Likelihood
from bayesadam.likelihoods.gaussian import gaussian_log_density
from bayesadam.likelihoods.parameters import check_shape, check_values, diagonal_factor, set_log, summed


class _Positive(Likelihood):
    """Base class for positive targets, of the output's shape."""

    def check(self, output: Tensor, target: Tensor) -> None:
        """Check that the target has the output's shape, with positive values."""
        check_shape(output.shape, target)
        check_values(target, (target > 0) & (target < torch.inf), "positive and finite")


class LogNormal(_Positive):
    """Log-normal likelihood, ``log y ~ N(output, 1 / noise_precision)``.

    The output is the mean of ``log y``, and ``exp(output)`` the median of ``y``, in the units of the target. Output and
    target are ``(N,)``, or ``(N, ..., D)`` with ``D`` targets, independent given the output, whose log densities (of
    ``y`` itself, not of its logarithm) are summed.

    Args:
        noise_precision: Precision of ``log y``: one number for all outputs, or a sequence or tensor with one per
            output.
        learned: Whether to make it a parameter (``log_noise_precision``), to be given to the optimiser in a group with
            ``perturb=False`` and a larger ``lr``.

    Raises:
        ValueError: The precision is not positive.
    """

    log_noise_precision: Tensor

    def __init__(self, noise_precision: float | Tensor = 1.0, *, learned: bool = False) -> None:
        super().__init__()
        set_log(self, "noise_precision", noise_precision, learned=learned)

    @property
    def noise_precision(self) -> Tensor:
        """Precision of ``log y``; 0-d or one per output."""
        return self.log_noise_precision.exp()

    def distribution(self, output: Tensor) -> Distribution:
        """``torch.distributions.LogNormal``."""
        scale = (-0.5 * self.log_noise_precision.to(output)).exp()
        return distributions.LogNormal(output, scale, validate_args=False)

    def element_log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density of every target."""
        log_target = _log(target, output)
        return gaussian_log_density(log_target - output, -self.log_noise_precision.to(output)) - log_target

    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        """Distribution function by that of the normal distribution, in float64."""
        root = (0.5 * self.log_noise_precision.to(output.device, torch.float64)).exp()
        below: Tensor = torch.special.ndtr((value.double().clamp_min(0.0).log() - output.double()) * root)
        return below

    @torch.no_grad()
    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """``noise_precision (log y - output)``."""
        return (_log(target, output) - output) * self.log_noise_precision.to(output).exp()

    @torch.no_grad()
    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """Square roots of the noise precisions, ``(N, P, 1, 1)``; the squares are the exact second derivative."""
        return diagonal_factor((0.5 * self.log_noise_precision.to(output)).exp().expand(output.shape))

    def expected_log_density(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """Expected log density in closed form, as for a Gaussian ``log y``."""
        terms = self.element_log_density(mean, target) - 0.5 * variance * self.log_noise_precision.to(mean).exp()
        return summed(terms, target)

    def log_expected_density(
        self, mean: Tensor, variance: Tensor, target: Tensor, covariance: Tensor | None = None
    ) -> Tensor:
        """Log expected density in closed form, as for a Gaussian ``log y``; outputs are treated as independent."""
        log_target = _log(target, mean)
        log_variance = (variance + (-self.log_noise_precision.to(mean)).exp()).log()
        terms = gaussian_log_density(log_target - mean, log_variance) - log_target
        return summed(terms, target)


class Gamma(_Positive):
    """Gamma likelihood with the mean ``exp(output)`` and the variance ``exp(2 output) / shape``.

    The output is the log mean, and the mean is in the units of the target. Output and target are ``(N,)``, or ``(N,
    ..., D)`` with ``D`` targets, independent given the output, whose log densities are summed. The rate is ``shape
    exp(-output)``; with ``shape=1`` it is the exponential distribution.

    Args:
        shape: One number for all outputs, or a sequence or tensor with one per output; dimensionless.
        learned: Whether to make it a parameter (``log_shape``), to be given to the optimiser in a group with
            ``perturb=False`` and a larger ``lr``.

    Raises:
        ValueError: The shape is not positive.
    """

    log_shape: Tensor

    def __init__(self, shape: float | Tensor = 1.0, *, learned: bool = False) -> None:
        super().__init__()
        set_log(self, "shape", shape, learned=learned)

    @property
    def shape(self) -> Tensor:
        """Inverse of the squared coefficient of variation; 0-d or one per output."""
        return self.log_shape.exp()

    def distribution(self, output: Tensor) -> Distribution:
        """``torch.distributions.Gamma``."""
        log_shape = self.log_shape.to(output)
        concentration = log_shape.exp().expand(output.shape)
        return distributions.Gamma(concentration, (log_shape - output).exp(), validate_args=False)

    def element_log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density of every target."""
        return self._terms(output, _log(target, output) - output, target)

    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        """Distribution function by the incomplete gamma function, in float64."""
        shape = self.log_shape.to(output.device, torch.float64).exp()
        ratio = value.double().clamp_min(0.0) * (-output.double()).exp()
        below: Tensor = torch.special.gammainc(shape, shape * ratio)
        return below

    @torch.no_grad()
    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """``shape (y / exp(output) - 1)``."""
        return torch.expm1(_log(target, output) - output) * self.log_shape.to(output).exp()

    @torch.no_grad()
    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """Square roots of the expected second derivative, which is the shape, ``(N, P, 1, 1)``."""
        return diagonal_factor((0.5 * self.log_shape.to(output)).exp().expand(output.shape))

    def expected_log_density(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """Expected log density in closed form; the expected ``exp(-output)`` is the mean of a log-normal variable."""
        terms = self._terms(mean, _log(target, mean) - mean + 0.5 * variance, target)
        return summed(terms, target)

    def _terms(self, output: Tensor, log_ratio: Tensor, target: Tensor) -> Tensor:
        """Terms of the log density from the logarithm of the ratio of target and mean, or of the expected ratio.

        It is written with the density of a Poisson distribution, without the difference of two large numbers.
        """
        log_shape, log_target = self.log_shape.to(output), _log(target, output)
        return log_poisson(log_shape.exp(), log_target - output, log_ratio) + log_shape - log_target


def _log(target: Tensor, like: Tensor) -> Tensor:
    """Logarithm of the target; integers are converted to the dtype of the outputs."""
    return (target if target.is_floating_point() else target.to(like.dtype)).log()
