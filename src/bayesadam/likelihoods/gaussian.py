"""Likelihoods with Gaussian noise around the output of a network."""

from __future__ import annotations

import abc
import math

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from bayesadam.functional import moments as maps
from bayesadam.likelihoods.base import Likelihood
from bayesadam.likelihoods.parameters import (
    check_equal_shapes,
    check_shape,
    diagonal_factor,
    scale_factor,
    set_log,
    summed,
    with_log,
)


class RegressionLikelihood(Likelihood, abc.ABC):
    """Base class of Gaussian likelihoods around the network's output, independent over the last axis.

    Targets have the shape of the mean: ``(N,)``, or ``(N, ..., D)``, whose ``D`` outputs are one data point.
    Predictions are mixtures of Gaussians. For targets of another distribution derive from :class:`Likelihood`.
    """

    @abc.abstractmethod
    def mean_and_log_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of ``y`` given an output, of the same shape."""

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of ``y`` given an output, of the same shape."""
        mean, log_variance = self.mean_and_log_variance(output)
        return mean, log_variance.exp()

    def check(self, output: Tensor, target: Tensor) -> None:
        """Check that the target has the mean's shape (``(N,)`` against ``(N, 1)`` would broadcast to N x N)."""
        mean, log_variance = self.mean_and_log_variance(output)
        check_shape(mean.shape, target)
        check_equal_shapes("mean_and_log_variance", mean, log_variance)

    def log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density, summed over the outputs of a data point."""
        mean, log_variance = self.mean_and_log_variance(output)
        return summed(gaussian_log_density(target - mean, log_variance), target)

    def tempered(self, temperature: float) -> RegressionLikelihood:
        """Return a copy with the variance of the noise multiplied by the temperature."""
        return TemperedRegression(self, temperature)

    def distribution(self, output: Tensor) -> Distribution:
        """``Normal`` of :meth:`mean_and_log_variance`."""
        mean, log_variance = self.mean_and_log_variance(output)
        return Normal(mean, (0.5 * log_variance).exp(), validate_args=False)

    @torch.no_grad()
    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """The Fisher information of a data point, for any mean ``m`` and log variance ``v``.

        Its columns are ``exp(-v / 2) dm / d output`` and ``sqrt(1 / 2) dv / d output`` for each of the targets, by
        automatic differentiation.
        """
        leaf, columns = output.detach().requires_grad_(), []
        with torch.enable_grad():
            mean, log_variance = self.mean_and_log_variance(leaf)
            points = summed(mean[:1], target).numel()
            for terms in (mean * (-0.5 * log_variance.detach()).exp(), log_variance * math.sqrt(0.5)):
                for term in terms.reshape(len(output), points, -1).unbind(-1) if terms.requires_grad else ():
                    (column,) = torch.autograd.grad(
                        term.sum(), leaf, retain_graph=True, allow_unused=True, materialize_grads=True
                    )
                    columns.append(column.reshape(len(output), points, -1))
        return torch.stack(columns, -1)

    def log_expected_density(
        self, mean: Tensor, variance: Tensor, target: Tensor, covariance: Tensor | None = None
    ) -> Tensor:
        """``log N(y | mean, variance + noise)`` (Bayer et al. 2015, section 3.4), with the expected noise variance.

        If the full covariance of the outputs is known, it is used (section 3.1).
        """
        center, spread, log_noise = self.under_gaussian(mean, variance)
        if covariance is None:
            return summed(gaussian_log_density(target - center, (spread + log_noise.exp()).log()), target)
        width = center.shape[-1]
        total = covariance[..., :width, :width] + torch.diag_embed(log_noise.exp())
        return maps.gaussian_log_prob(target - center, total)


class Gaussian(RegressionLikelihood):
    """Gaussian likelihood ``N(output, 1 / noise_precision)``.

    Args:
        noise_precision: Precision of the noise in the inverse squared units of the targets: one number for all outputs,
            or a sequence or tensor with one per output.
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
        """Precision of the noise, in the inverse squared units of the targets; 0-d or one per output."""
        return self.log_noise_precision.exp()

    def mean_and_log_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the log variance of the noise.

        Raises:
            ValueError: There is not one noise precision per output.
        """
        log_variance = -self.log_noise_precision.to(output)
        try:
            return output, log_variance.expand(output.shape)
        except RuntimeError:
            raise ValueError(
                f"noise_precision must be one number or one per output, got {tuple(log_variance.shape)} of them "
                f"for outputs {tuple(output.shape)}"
            ) from None

    distribution = RegressionLikelihood.distribution  # the terms below are of this one

    def element_log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density of every output."""
        mean, log_variance = self.mean_and_log_variance(output)
        return gaussian_log_density(target - mean, log_variance)

    @torch.no_grad()
    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """``noise_precision (y - output)``."""
        precision = self.log_noise_precision.to(output).exp()
        return (target - output).mul_(precision)

    @torch.no_grad()
    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """Square roots of the noise precisions, ``(N, P, 1, 1)``; the squares are the exact second derivative."""
        _, log_variance = self.mean_and_log_variance(output)
        return diagonal_factor((-0.5 * log_variance).exp())

    def rescaled(self, factor: Tensor) -> Gaussian:
        """Return a copy with the noise precision divided by the square of the factor."""
        log_precision = self.log_noise_precision
        return with_log(self, "noise_precision", log_precision - 2.0 * factor.log().to(log_precision))

    def tempered(self, temperature: float) -> Gaussian:
        """Return a copy with the noise precision divided by the temperature."""
        return self.rescaled(scale_factor(temperature))

    def under_gaussian(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The moments, as in the base class; the noise does not depend on the outputs."""
        return mean, variance, self.mean_and_log_variance(mean)[1]

    def expected_log_density(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """``log N(y | mean, s2) - variance / (2 s2)`` (Bayer et al. 2015, section 3.3)."""
        _, log_noise = self.mean_and_log_variance(mean)
        terms = gaussian_log_density(target - mean, log_noise) - 0.5 * variance * (-log_noise).exp()
        return summed(terms, target)


class HeteroscedasticGaussian(RegressionLikelihood):
    """Gaussian likelihood ``N(m, exp(v))``, where the output ``(..., 2 D)`` is ``m`` followed by ``v`` along the last
    axis.

    Targets are ``(N, ..., D)``.
    """

    outputs_per_target = 2

    def mean_and_log_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The two halves of the output.

        Raises:
            ValueError: The last axis has an odd size.
        """
        if output.ndim == 0 or output.shape[-1] % 2:
            raise ValueError(
                f"output must have mean and log variance along its last axis, got the shape {tuple(output.shape)}"
            )
        mean, log_variance = output.chunk(2, dim=-1)
        return mean, log_variance

    @torch.no_grad()
    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """``exp(-v / 2)`` for ``m`` and ``sqrt(1 / 2)`` for ``v``, as ``E (y - m)^2 exp(-v) / 2 = 1 / 2``."""
        _, log_variance = self.mean_and_log_variance(output)
        scale = (-0.5 * log_variance).exp()
        return diagonal_factor(torch.cat([scale, torch.full_like(scale, math.sqrt(0.5))], -1))

    def under_gaussian(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The moments, as in the base class; ``E exp(v)`` is the mean of a log-normal variable."""
        (center, log_noise), (spread, wobble) = mean.chunk(2, -1), variance.chunk(2, -1)
        return center, spread, log_noise + 0.5 * wobble

    def expected_log_density(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """Expected log density, with the log variance of the noise integrated out as well."""
        (center, log_noise), (spread, wobble) = mean.chunk(2, -1), variance.chunk(2, -1)
        squares = (target - center).square() + spread
        terms = -0.5 * (squares * (0.5 * wobble - log_noise).exp() + log_noise + math.log(2.0 * math.pi))
        return summed(terms, target)


INHERITED = ("element_log_density", "expected_log_density")
"""Capabilities that a tempered likelihood has only if its base has them."""


class TemperedRegression(RegressionLikelihood):
    """A Gaussian likelihood with the variance of its noise multiplied by a temperature, which is a buffer.

    Args:
        base: The likelihood; it is kept, not copied.
        temperature: Factor of the noise variance.

    Raises:
        ValueError: The temperature is not positive and finite.
    """

    log_temperature: Tensor

    def __init__(self, base: RegressionLikelihood, temperature: float) -> None:
        super().__init__()
        set_log(self, "temperature", temperature, learned=False)
        self.base = base
        self.outputs_per_target = base.outputs_per_target  # type: ignore[misc]  # of the base, so not of the class

    @property
    def temperature(self) -> Tensor:
        """Factor of the noise variance; 0-d."""
        return self.log_temperature.exp()

    def defines(self, capability: str) -> bool:
        """Whether the likelihood defines the capability, those of :data:`INHERITED` only if ``base`` does."""
        return super().defines(capability) and (capability not in INHERITED or self.base.defines(capability))

    def tempered(self, temperature: float) -> TemperedRegression:
        """Return a copy at the product of both temperatures."""
        return TemperedRegression(self.base, temperature * float(self.temperature))

    def mean_and_log_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of ``base``, with the log of the temperature added to the latter."""
        mean, log_variance = self.base.mean_and_log_variance(output)
        return mean, log_variance + self.log_temperature.to(log_variance)

    def under_gaussian(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The moments of ``base``, with the log of the temperature added to the log variance."""
        center, spread, log_noise = self.base.under_gaussian(mean, variance)
        return center, spread, log_noise + self.log_temperature.to(log_noise)

    distribution = RegressionLikelihood.distribution  # the terms below are of this one

    def element_log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density of every output, if ``base`` has it."""
        if not self.defines("element_log_density"):
            raise self.missing("element_log_density")
        mean, log_variance = self.mean_and_log_variance(output)
        return gaussian_log_density(target - mean, log_variance)

    def expected_log_density(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """That of ``base`` divided by the temperature, and the rest, which depends on the expected log variance ``v``.

        It is exact if ``v`` is linear, and by quadrature if it depends on one output, as for
        :class:`HeteroscedasticGaussian`.
        """
        if not self.defines("expected_log_density"):
            return super().expected_log_density(mean, variance, target)
        log_temperature = self.log_temperature.to(mean)
        log_noise, _ = maps.gauss_hermite(lambda output: self.base.mean_and_log_variance(output)[1], mean, variance)
        rest = 0.5 * (torch.expm1(-log_temperature) * (log_noise + math.log(2.0 * math.pi)) - log_temperature)
        inner = self.base.expected_log_density(mean, variance, target)
        return inner * (-log_temperature).exp() + summed(rest, target)


def gaussian_log_density(residual: Tensor, log_variance: Tensor) -> Tensor:
    """``log N(residual | 0, exp(log_variance))``, element-wise."""
    # The log variance is used directly, because the variance and its inverse may be out of the range of float32.
    white = residual * (-0.5 * log_variance).exp()
    return -0.5 * (white.square() + log_variance + math.log(2.0 * math.pi))
