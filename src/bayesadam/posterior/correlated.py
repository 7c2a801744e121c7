"""The base class of the Gaussians with dependent weights."""

from __future__ import annotations

from bayesadam.posterior.diagonal import DiagonalGaussian
from bayesadam.posterior.gaussian_posterior import GaussianPosterior


class CorrelatedGaussian(GaussianPosterior):
    """Base class of Gaussians whose weights may depend on each other."""

    def marginal(self) -> DiagonalGaussian:
        """Return the diagonal Gaussian with the same means and marginal variances."""
        marginal = DiagonalGaussian(self.mean, self.variance, hyperparameters=self.hyperparameters)
        return marginal.with_buffers(self.buffers)
