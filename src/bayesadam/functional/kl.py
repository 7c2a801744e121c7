"""KL divergences and log densities of weights, summed over all weights and computed together with their gradients.

The gradient of each sum takes one or two passes over memory, while autograd would take many. Rows are summed in the
dtype of the weights, since a float64 copy costs more than the arithmetic, and the rows' sums are added in float64.
``std`` must be positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

__all__ = ["bernoulli", "gaussian", "gaussian_log_prob", "mixture_terms", "scale_mixture_log_prob"]

LOG_2PI = math.log(2.0 * math.pi)


def gaussian(mean: Tensor, std: Tensor, prior_mean: float | Tensor, prior_log_std: float | Tensor) -> Tensor:
    """``KL(N(mean, std^2) || N(prior_mean, prior_std^2))`` in nats, summed over all weights; 0-d float64.

    It is differentiable in all arguments that are tensors. Those of the prior are numbers, 0-d tensors, or of the
    weights' shape.
    """
    shift = mean - prior_mean
    precision: float | Tensor
    if isinstance(prior_log_std, Tensor):
        if prior_log_std.ndim > 0:
            log_std = prior_log_std.to(std.dtype)
            squares = (-2.0 * log_std).exp() * (shift.square() + std.square())
            return _sum(log_std - std.log() + 0.5 * (squares - 1.0))
        prior_log_std = prior_log_std.double()  # as the sums that it is multiplied with
        precision = (-2.0 * prior_log_std).exp()
    else:  # a number stays one: on a GPU a tensor of it would be waited for
        precision = math.exp(-2.0 * prior_log_std)
    squares = precision * (_sum_of_squares(shift) + _sum_of_squares(std))
    return (prior_log_std - 0.5) * std.numel() - _sum(std.log()) + 0.5 * squares


def bernoulli(logit: Tensor, prior_logit: float | Tensor) -> Tensor:
    """``KL(Bernoulli(sigmoid(logit)) || Bernoulli(sigmoid(prior_logit)))`` in nats, summed over all weights; 0-d
    float64.

    It is differentiable twice in both arguments, and may be mapped by ``torch.func``. Logits are finite; the prior's is
    a number, or of a shape that broadcasts to the weights'.
    """
    prior = torch.as_tensor(prior_logit, dtype=logit.dtype, device=logit.device)
    result: Tensor = _Bernoulli.apply(logit, prior)  # type: ignore[no-untyped-call]
    return result


def scale_mixture_log_prob(value: Tensor, weight: float, wide: float, narrow: float) -> Tensor:
    """``log(weight N(value | 0, wide^2) + (1 - weight) N(value | 0, narrow^2))``, summed; 0-d float64.

    This is the scale mixture of Blundell et al. 2015, section 3.3, computed by ``logaddexp``, so it is finite if the
    square of every value is.
    """
    with torch.no_grad():
        first, second = mixture_terms(value, weight, wide, narrow)
        peak = torch.maximum(first, second)
        gap = first.sub_(second)
        # PyTorch's logaddexp and log1p take several times as long; the digits that log1p would keep are lost in the
        # next addition, and terms beyond 80 are negligible.
        ratio = torch.abs(gap, out=second).clamp_max_(80.0).neg_().exp_()
        total = _sum(peak.add_(ratio.add_(1.0).log_()))
        if not value.requires_grad:
            return total
        # -value (share / wide^2 + (1 - share) / narrow^2)
        slope = gap.clamp_max_(80.0).sigmoid_().mul_(narrow**-2 - wide**-2).sub_(narrow**-2).mul_(value)
    result: Tensor = _Known.apply(total, value, slope)  # type: ignore[no-untyped-call]
    return result


def mixture_terms(value: Tensor, weight: float, wide: float, narrow: float) -> tuple[Tensor, Tensor]:
    """Log density of each component of a scale mixture, with its weight, element-wise."""
    square = value.square()
    first = square.mul(-0.5 / wide**2).add_(math.log(weight / wide) - 0.5 * LOG_2PI)
    second = square.mul_(-0.5 / narrow**2).add_(math.log((1.0 - weight) / narrow) - 0.5 * LOG_2PI)
    return first, second


def gaussian_log_prob(log_stds: Tensor, eps: Sequence[Tensor]) -> Tensor:
    """``log N(theta | mean, std^2)`` at ``theta = mean + std * eps``, summed over several tensors; 0-d float64.

    All derivatives cancel except for that of ``log_stds``.

    Args:
        log_stds: Sum of the logarithms of all standard deviations.
        eps: Standard normals of each tensor.
    """
    squares = torch.stack([_sum_of_squares(e) for e in eps]).sum()
    return -0.5 * squares - log_stds - 0.5 * LOG_2PI * sum(e.numel() for e in eps)


class _Known(torch.autograd.Function):
    """``total`` as a function of ``value``, with ``slope`` as its derivative."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return total.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return None, slope * grad, None


class _Bernoulli(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(logit: Tensor, prior: Tensor) -> Tensor:
        # With 1 - p for p where p < 1/2, which changes nothing, no term is larger than the result or log 2.
        size = logit.abs()
        prior = torch.copysign(torch.ones_like(prior), logit) * prior
        return _sum(logsigmoid(size) - logsigmoid(prior) - torch.sigmoid(-size) * (size - prior))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        logit, prior = ctx.saved_tensors
        grad = grad.to(logit.dtype)
        p, q = torch.sigmoid(logit), torch.sigmoid(-logit)
        slope = p * q * (logit - prior) * grad
        if not ctx.needs_input_grad[1]:
            return slope, None
        # sigmoid(prior) - p, also where both are nearly 1
        away = torch.sigmoid(prior) * q - torch.sigmoid(-prior) * p
        return slope, away.sum_to_size(prior.shape) * grad


def _sum(tensor: Tensor) -> Tensor:
    if tensor.ndim > 1:
        tensor = tensor.sum(-1)
    return tensor.sum(dtype=torch.float64)


def _sum_of_squares(tensor: Tensor) -> Tensor:
    if tensor.ndim < 2:
        return _sum(tensor.square())
    norms: Tensor = torch.linalg.vector_norm(tensor, dim=-1)
    return norms.double().square().sum()
