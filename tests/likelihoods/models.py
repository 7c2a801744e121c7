"""A user's own likelihoods, each defining one method."""

import torch
from torch import distributions

from bayesadam.likelihoods import Likelihood
from posterior.kinds import F64, draw


def close(a, b, **tolerances):
    torch.testing.assert_close(a, b, **(tolerances or {"rtol": 1e-12, "atol": 1e-12}))


class Exponential(Likelihood):
    """Nothing but a density: waiting times whose log rate is the output."""

    def log_density(self, output, target):
        terms = output - target * output.exp()
        return terms.sum(-1) if target.ndim > 1 else terms


class ByElements(Likelihood):
    """The same by its terms."""

    def element_log_density(self, output, target):
        return output - target * output.exp()


class ByDistribution(Likelihood):
    """The same by a distribution."""

    def distribution(self, output):
        return distributions.Exponential(output.exp(), validate_args=False)


class Laplace(Likelihood):
    """Straight pieces: its second derivative is 0."""

    def log_density(self, output, target):
        return -(target - output).abs().sum(-1)


class Neighbours(Likelihood):
    """Two outputs of a data point that belong together, and no log-concave density."""

    def log_density(self, output, target):
        residual = target - output
        return -torch.log1p(residual.square().sum(-1) + residual[..., 0] * residual[..., 1])


def waiting_times(count=40, inputs=3, seed=0):
    """Inputs, and times whose log rate is linear in them."""
    x = draw(count, inputs, seed=seed)
    uniform = torch.rand(count, 1, generator=torch.Generator().manual_seed(seed + 1), **F64)
    return x, -uniform.log() / (0.5 + x[:, :1]).exp()
