"""Samples of Gaussians, with gradients in a parameter ``rho`` of the standard deviation or in the variance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def softplus(rho: Tensor) -> Tensor:
    """``log(1 + exp(rho))``, element-wise, the standard deviation for ``rho`` (Blundell et al. 2015)."""
    result: Tensor = _Softplus.apply(rho)  # type: ignore[no-untyped-call]
    return result


def sample(mean: Tensor, rho: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """``mean + softplus(rho) * eps`` and ``softplus(rho)``, element-wise, in one function with a fast gradient.

    ``d_rho = (d_sample * eps + d_std) / (1 + exp(-rho))`` (Blundell et al. 2015, section 3.2). The sample has the dtype
    of ``mean``, which may be lower than that of ``rho`` and ``eps``.
    """
    theta, std = _Sample.apply(mean, rho, eps)  # type: ignore[no-untyped-call]
    return theta, std


def sample_again(theta: Tensor, mean: Tensor, rho: Tensor, eps: Tensor) -> Tensor:
    """``theta``, a sample that :func:`sample` has given, with a gradient graph of its own."""
    result: Tensor = _SampleAgain.apply(theta, mean, rho, eps)  # type: ignore[no-untyped-call]
    return result


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


def _softplus(rho: Tensor) -> Tensor:
    return torch.nn.functional.softplus(rho, threshold=_THRESHOLD)


def _times_slope(rho: Tensor, grad: Tensor, out: Tensor | None = None) -> Tensor:
    """``grad / (1 + exp(-rho))``."""
    if out is None:
        out = torch.empty_like(rho)
    product: Tensor = torch.ops.aten.softplus_backward.grad_input(grad, rho, 1.0, _THRESHOLD, grad_input=out)
    return product


class _Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rho: Tensor) -> Tensor:
        ctx.save_for_backward(rho)
        return _softplus(rho)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (rho,) = ctx.saved_tensors
        return _times_slope(rho, grad)


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, rho: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
        std = _softplus(rho)
        ctx.save_for_backward(rho, eps)
        ctx.set_materialize_grads(False)
        return torch.addcmul(mean.to(rho.dtype), std, eps).to(mean.dtype), std

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, theta: Tensor | None, std: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        rho, eps = ctx.saved_tensors
        theta = None if theta is None else theta.to_dense()  # an embedding's may be sparse
        if theta is None:
            return None, None if std is None else _times_slope(rho, std), None
        total = theta * eps if std is None else torch.addcmul(std, theta, eps)
        return theta, _times_slope(rho, total, out=total), None


class _SampleAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, mean: Tensor, rho: Tensor, eps: Tensor) -> Tensor:
        ctx.save_for_backward(rho, eps)
        return theta.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rho, eps = ctx.saved_tensors
        grad = grad.to_dense()
        return None, grad, _times_slope(rho, grad * eps), None


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
