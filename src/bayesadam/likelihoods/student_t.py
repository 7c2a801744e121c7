"""Student's t likelihood, for errors with heavy tails."""

from __future__ import annotations

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from bayesadam.functional.special import betainc
from bayesadam.likelihoods.base import Likelihood
from bayesadam.likelihoods.parameters import diagonal_factor, set_log, with_log


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
            group with ``perturb=False``.

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
        """Log density of every target."""
        density: Tensor = self.distribution(output).log_prob(target)
        return density

    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        """Distribution function by the incomplete beta function, in float64."""
        degrees, scale = (log.to(output.device, torch.float64).exp() for log in (self.log_degrees, self.log_scale))
        squares = ((value.double() - output.double()) / scale).square()
        total = degrees + squares
        tail = 0.5 * betainc(0.5 * degrees, torch.full_like(degrees, 0.5), degrees / total, squares / total)
        return torch.where(value > output, 1.0 - tail, tail)

    @torch.no_grad()
    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """``(degrees + 1) u / (degrees + u^2) / scale`` with ``u = (y - output) / scale``."""
        degrees, scale = self.log_degrees.to(output).exp(), self.log_scale.to(output).exp()
        white = (target - output) / scale
        return (degrees + 1.0) * white / (degrees + white.square()) / scale

    @torch.no_grad()
    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """Square roots of the Fisher information, ``(N, P, 1, 1)``."""
        degrees = self.log_degrees.to(output).exp()
        root = ((degrees + 1.0) / (degrees + 3.0)).sqrt() * (-self.log_scale.to(output)).exp()
        return diagonal_factor(root.expand(output.shape))

    def rescaled(self, factor: Tensor) -> StudentT:
        """Return a copy with the scale multiplied by the factor."""
        return with_log(self, "scale", self.log_scale + factor.log().to(self.log_scale))
