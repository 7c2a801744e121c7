"""FAWN's networks as members of a population: moments and divergence are outputs, the objective a likelihood."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Likelihood
from bayesadam.moments import fawn


class MomentNetwork(nn.Module):
    """Gives ``(N, 2 K + 1)``: means, variances, and the divergence from the prior per data point.

    Args:
        model: Becomes a part of it.
        num_data: Number of training data points.
    """

    def __init__(self, model: nn.Module, num_data: int) -> None:
        super().__init__()
        self.net = fawn(model)
        self.num_data = num_data

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        found = self.net(x)
        penalty = (self.net.kl_divergence() / self.num_data).to(found.mean.dtype)
        return torch.cat([found.mean, found.spread(), penalty.expand(len(x), 1)], dim=-1)


class MomentLikelihood(Likelihood):
    """``log p`` of a :class:`MomentNetwork`'s outputs, less the divergence: FAWN's objective as a mean over data.

    Args:
        likelihood: Of the outputs themselves; a part of it.
        objective: ``"ropd"`` or ``"vi"``.
    """

    def __init__(self, likelihood: Likelihood, objective: str) -> None:
        super().__init__()
        self.likelihood = copy.deepcopy(likelihood)
        self.objective = objective

    def check(self, output: Tensor, target: Tensor) -> None:
        """As that of the outputs themselves."""
        self.likelihood.check(output[..., : output.shape[-1] // 2], target)

    def log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        width = output.shape[-1] // 2
        mean, variance = output[..., :width], output[..., width : 2 * width]
        ropd = self.objective == "ropd"
        score = self.likelihood.log_expected_density if ropd else self.likelihood.expected_log_density
        return score(mean, variance, target) - output[..., -1]
