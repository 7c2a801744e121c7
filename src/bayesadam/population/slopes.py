"""``d log p(y | output) / d output`` in closed form: autograd costs more than all the rest of a small network."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bayesadam.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood

Slope = Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor]


def slope_of(likelihood: Likelihood) -> Slope | None:
    """The function for a likelihood without learned parameters, if it is known.

    It takes the fixed tensors, each ``(k, ...)``, outputs ``(k, S, M, D)`` and targets ``(k, M, ...)``.
    """
    return _SLOPES.get(type(likelihood))


def _bernoulli(fixed: Mapping[str, Tensor], output: Tensor, target: Tensor) -> Tensor:
    labels = target.to(output.dtype).unsqueeze(1)
    # The label less the probability, which cancels where both are near 1: with label 1 it is sigmoid(-output).
    return torch.lerp(output.sigmoid().neg_(), (-output).sigmoid_(), labels)


def _gaussian(fixed: Mapping[str, Tensor], output: Tensor, target: Tensor) -> Tensor:
    precision = fixed["log_noise_precision"].to(output.dtype).exp()
    return (target.unsqueeze(1) - output).mul_(precision.view(len(output), 1, 1, -1))


def _categorical(fixed: Mapping[str, Tensor], output: Tensor, target: Tensor) -> Tensor:
    index = target.long()[:, None, :, None].expand(*output.shape[:-1], 1)
    slope = output.softmax(-1).neg_()
    # One less the probability of the class, as the sum of the others: it cancels where that is near 1.
    rest = slope.scatter(-1, index, 0.0).sum(-1, keepdim=True).neg_()
    return slope.scatter_(-1, index, rest)


_SLOPES: dict[type[Likelihood], Slope] = {Bernoulli: _bernoulli, Gaussian: _gaussian, Categorical: _categorical}
