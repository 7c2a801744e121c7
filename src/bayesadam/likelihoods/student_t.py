"""Student's t likelihood, for errors with heavy tails."""

from __future__ import annotations

import math

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from bayesadam.functional.special import betainc, log_rising
from bayesadam.likelihoods.base import Likelihood
from bayesadam.likelihoods.parameters import diagonal_factor, scale_factor, set_log, with_log

MANY, NORMAL = 1e6, 1e18
"""Degrees of freedom from which the distribution function is an approximation, and the density that of a Gaussian."""

FARTHEST = 1e150
"""Largest distance in scales for which the distribution function is computed, so that its square is finite."""


class StudentT(Likelihood):
    """Likelihood ``output + scale t`` with Student's ``t`` of ``degrees`` degrees of freedom, robust to outliers.

    The output is the location, in the units of the target. Output and target are ``(N,)``, or ``(N, ..., D)`` with
    ``D`` targets, independent given the output, whose log densities are summed. With up to 1 degree of freedom there is
    no mean (it is NaN), and with up to 2 no finite variance.

    The curvature is the Fisher information, ``(degrees + 1) / (degrees + 3) / scale^2``, since the second derivative at
    a target is negative for outliers.

    Args:
        degrees: Degrees of freedom: one number for all outputs, or a sequence or tensor with one per output.
        scale: Scale in the units of the target: one number for all outputs, or a sequence or tensor with one per
            output.
        learned: Whether to make both parameters (``log_degrees`` and ``log_scale``), to be given to the optimiser in a
            group with ``perturb=False`` and a larger ``lr``.

    Raises:
        ValueError: Degrees or scale are not positive.
    """

    log_degrees: Tensor
    log_scale: Tensor

    def __init__(self, degrees: float | Tensor = 4.0, *, scale: float | Tensor = 1.0, learned: bool = False) -> None:
        super().__init__()
        set_log(self, "degrees", degrees, learned=learned)
        set_log(self, "scale", scale, learned=learned)

    @property
    def degrees(self) -> Tensor:
        """Degrees of freedom; 0-d or one per output."""
        return self.log_degrees.exp()

    @property
    def scale(self) -> Tensor:
        """Scale in the units of the target; 0-d or one per output."""
        return self.log_scale.exp()

    def distribution(self, output: Tensor) -> Distribution:
        """``torch.distributions.StudentT``."""
        degrees, scale = self.log_degrees.to(output).exp(), self.log_scale.to(output).exp()
        return distributions.StudentT(degrees, output, scale, validate_args=False)

    def element_log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density of every target.

        PyTorch's subtracts two large numbers for many degrees of freedom: in float32 it is wrong by 0.005 at 10,000
        degrees and by 0.9 at 1e8, which degrees that are learned would find. The square of a far outlier overflows;
        the logarithm of the distance is doubled instead.
        """
        degrees, log_scale = self.log_degrees.to(output).exp().clamp_max(NORMAL), self.log_scale.to(output)
        error = target - output
        white = error * (-log_scale).exp()
        far = white.abs() > (degrees / torch.finfo(error.dtype).eps).sqrt()
        near = (torch.where(far, 0.0, white).square() / degrees).log1p()
        tail = 2.0 * (torch.where(far, error, 1.0).abs().log() - log_scale) - degrees.log()
        half = torch.full_like(degrees, 0.5)
        constant = log_rising(half * degrees, half) - 0.5 * math.log(2.0 * math.pi) - log_scale
        return constant - 0.5 * (degrees + 1.0) * torch.where(far, tail, near)

    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        """Distribution function by the incomplete beta function, in float64.

        From a million degrees of freedom on it is the normal distribution's at a corrected value (Abramowitz and Stegun
        1964, 26.7.8).
        """
        degrees, scale = (log.to(output.device, torch.float64).exp() for log in (self.log_degrees, self.log_scale))
        white = ((value.double() - output.double()) / scale).clamp(-FARTHEST, FARTHEST)
        few, squares = degrees.clamp_max(MANY), white.square()
        total = few + squares
        tail = 0.5 * betainc(0.5 * few, torch.full_like(few, 0.5), few / total, squares / total)
        corrected = white * (1.0 - 0.25 / degrees) / (1.0 + 0.5 * squares / degrees).sqrt()
        exact = torch.where(white > 0.0, 1.0 - tail, tail)
        return torch.where(degrees > MANY, torch.special.ndtr(corrected), exact)

    @torch.no_grad()
    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """``(degrees + 1) u / (degrees + u^2) / scale`` with ``u = (y - output) / scale``."""
        degrees, scale = self.log_degrees.to(output).exp().clamp_max(NORMAL), self.log_scale.to(output).exp()
        error = target - output
        return (degrees + 1.0) / (error + degrees * scale / (error / scale))  # the square of an outlier may overflow

    @torch.no_grad()
    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """Square roots of the Fisher information, ``(N, P, 1, 1)``."""
        degrees = self.log_degrees.to(output).exp()
        root = ((degrees + 1.0) / (degrees + 3.0)).sqrt() * (-self.log_scale.to(output)).exp()
        return diagonal_factor(root.expand(output.shape))

    def rescaled(self, factor: Tensor) -> StudentT:
        """Return a copy with the scale multiplied by the factor."""
        return with_log(self, "scale", self.log_scale + factor.log().to(self.log_scale))

    def tempered(self, temperature: float) -> StudentT:
        """Return a copy with the square of the scale multiplied by the temperature, and the same degrees of freedom.

        The power ``1 / temperature`` of the density would have other degrees of freedom, and for a high temperature no
        integral.
        """
        return self.rescaled(scale_factor(temperature))
