"""The objective of FAWN for the members of a population."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Likelihood
from bayesadam.moments import MomentModule
from bayesadam.population import Objective


class MomentObjective(Objective):
    """The loss of many networks made by :func:`bayesadam.fawn`.

    For one network it is :meth:`bayesadam.moments.MomentModule.loss`. The targets must have been checked.

    Args:
        likelihood: Likelihood of the outputs. A copy of it becomes a submodule.
        fit: ``"ropd"`` or ``"vi"``.
        num_data: Number of the member's training data points.
    """

    def __init__(self, likelihood: Likelihood, fit: str, num_data: int) -> None:
        super().__init__()
        self.likelihood = copy.deepcopy(likelihood)
        self.fit = fit
        self.num_data: Tensor
        self.register_buffer("num_data", torch.tensor(float(num_data), dtype=torch.float64))

    def losses(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the negative log density of each data point's target, or its expectation."""
        output = model(x)  # targets are not checked here, as torch.func.vmap hides their values
        if self.fit == "ropd":
            return -self.likelihood.log_expected_density(output.mean, output.spread(), y, output.covariance)
        return -self.likelihood.expected_log_density(output.mean, output.spread(), y)

    def penalty(self, model: nn.Module) -> Tensor:
        """Return the KL divergence from the prior per data point."""
        assert isinstance(model, MomentModule)
        return model.kl_divergence() / self.num_data
