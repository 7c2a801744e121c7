"""Samples of Gaussians, with gradients in a parameter ``rho`` of the standard deviation or in the variance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["inverse_softplus", "sample_of_variance", "softplus"]


def softplus(rho: Tensor) -> Tensor:
    """``log(1 + exp(rho))``, element-wise, the standard deviation for ``rho`` (Blundell et al. 2015)."""
    return torch.nn.functional.softplus(rho, threshold=_THRESHOLD)


def inverse_softplus(std: Tensor) -> Tensor:
    """``log(exp(std) - 1)``, element-wise, without overflow or cancellation; minus infinity at 0."""
    return std + (-torch.expm1(-std)).log()


def sample_of_variance(mean: Tensor, variance: Tensor, eps: Tensor) -> Tensor:
    """``mean + sqrt(variance) * eps``, element-wise, in the dtype of ``mean``.

    The derivative of the root at 0 is 0 and not infinite; variances below 0, as from rounding, count as 0.
    """
    result: Tensor = _SampleOfVariance.apply(mean, variance, eps)  # type: ignore[no-untyped-call]
    return result


_THRESHOLD = 40.0  # above it softplus is the identity; of 20, PyTorch's default, float64 sees 1e-10


class _SampleOfVariance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, eps: Tensor) -> Tensor:
        std = variance.clamp_min(0.0).sqrt_()
        ctx.save_for_backward(std, eps)
        return torch.addcmul(mean, std.to(mean.dtype), eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        std, eps = ctx.saved_tensors
        slope = (grad * eps).to(std.dtype).div_(std).mul_(0.5).masked_fill_(std == 0, 0.0)
        return grad, slope, None
