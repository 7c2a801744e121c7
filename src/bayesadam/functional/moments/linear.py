"""Means and variances through linear maps whose inputs and weights are independent (Bayer et al. 2015, section 2.1.1).

For inputs of mean ``x`` and variance ``u`` and weights of mean ``m`` and variance ``v``, of any distributions::

    mean     = m x + b
    variance = v (x^2 + u) + m^2 u + variance of b

A variance of ``None`` is exactly zero, and its product is omitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bayesadam.functional.batching import batch_first

Moments = tuple[Tensor, Tensor | None]


def linear(
    mean: Tensor,
    variance: Tensor | None,
    weight: Tensor,
    weight_variance: Tensor | None = None,
    bias: Tensor | None = None,
    bias_variance: Tensor | None = None,
) -> Moments:
    """Moments of ``torch.nn.functional.linear`` of independent inputs and weights.

    Outputs share their inputs and so are not independent of each other: see :func:`output_covariance`.

    Several networks may be run side by side, with weights ``(networks, out, in)``, biases ``(networks, out)``, and
    inputs ``(networks, n, in)``.

    Args:
        mean: Means of the inputs, ``(..., in)``.
        variance: Variances of the inputs, of the same shape.
        weight: Means of the weights, ``(out, in)``.
        weight_variance: Variances of the weights, of the same shape.
        bias: Means of the biases, ``(out,)``.
        bias_variance: Variances of the biases, of the same shape; only with a ``bias``.
    """
    if weight_variance is None:
        out = _affine(mean, weight, bias)
        if variance is not None:
            return out, _affine(variance, weight.square(), bias_variance)
        if bias_variance is None:
            return out, None
        return out, (bias_variance if weight.ndim == 2 else bias_variance.unsqueeze(1)).expand(out.shape)
    # Rows (n, in), or (networks, n, in).
    rows = mean if weight.ndim == 3 else mean.reshape(-1, mean.shape[-1])
    spreads = None if variance is None else variance.reshape(rows.shape)
    out, spread = _Linear.apply(rows, spreads, weight, weight_variance, bias, bias_variance)  # type: ignore[no-untyped-call]
    shape = *mean.shape[:-1], weight.shape[-2]
    return out.view(shape), spread.view(shape)


def convolution(
    call: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    mean: Tensor,
    variance: Tensor | None,
    weight: Tensor,
    weight_variance: Tensor | None = None,
    bias: Tensor | None = None,
    bias_variance: Tensor | None = None,
) -> Moments:
    """Moments of any map ``call(input, weight, bias)`` whose outputs are sums of inputs times weights, each weight
    once.

    Positions that share weights are treated as independent of each other, and so are overlapping windows.

    Args:
        call: The map, such as ``functional.conv2d`` with its options.
        mean: Means of the inputs, as ``call`` takes them.
        variance: Variances of the inputs, of the same shape.
        weight: Means of the weights, as ``call`` takes them.
        weight_variance: Variances of the weights, of the same shape.
        bias: Means of the biases, as ``call`` takes them.
        bias_variance: Variances of the biases, of the same shape; only with a ``bias``.
    """
    out = call(mean, weight, bias)
    spread = None
    if weight_variance is not None:
        spread = call(mean.square() if variance is None else mean.square() + variance, weight_variance, bias_variance)
    if variance is not None:
        carried = call(variance, weight.square(), bias_variance if spread is None else None)
        spread = carried if spread is None else spread + carried
    if spread is None and bias_variance is not None:
        spread = call(torch.zeros_like(mean), torch.zeros_like(weight), bias_variance)
    # Fast convolution algorithms subtract.
    return out, None if spread is None else spread.clamp_min(0.0)


def avg_pool2d(mean: Tensor, variance: Tensor | None, kernel_size: Any, **options: Any) -> Moments:
    """Moments of ``torch.nn.functional.avg_pool2d`` of independent inputs, with its ``options``.

    The variance of a sum divided by ``d`` is the variance of the sum divided by ``d^2``; padding has no variance.
    """

    def pool(x: Tensor, **others: Any) -> Tensor:
        return functional.avg_pool2d(x, kernel_size, **{**options, **others})

    if variance is None:
        return pool(mean), None
    ones = torch.ones_like(variance[:1])
    return pool(mean), pool(variance) * (pool(ones) / pool(ones, divisor_override=1))


def adaptive_avg_pool2d(mean: Tensor, variance: Tensor | None, output_size: Any) -> Moments:
    """Moments of ``torch.nn.functional.adaptive_avg_pool2d`` of independent inputs."""
    out = functional.adaptive_avg_pool2d(mean, output_size)
    if variance is None:
        return out, None
    spread = functional.adaptive_avg_pool2d(variance, output_size)
    for axis in (-2, -1):
        size, cells = mean.shape[axis], out.shape[axis]
        lengths = [-(-(i + 1) * size // cells) - i * size // cells for i in range(cells)]
        spread = spread / spread.new_tensor(lengths).view(-1, *[1] * (-axis - 1))
    return out, spread


def output_covariance(variance: Tensor, weight: Tensor, output_variance: Tensor) -> Tensor:
    """Covariance of the outputs of a linear layer, which share uncertain inputs (Bayer et al. 2015, section 3.1).

    ``Cov(y_j, y_k) = sum_i m_ij m_ik u_i``; the diagonal is that of :func:`linear`.

    Args:
        variance: Variances of the layer's inputs, ``(N, in)``; for networks side by side all tensors have one more
            axis.
        weight: Means of the weights, ``(out, in)``.
        output_variance: Variances of the outputs from :func:`linear`, ``(N, out)``.

    Returns:
        Covariances, ``(N, out, out)``.
    """
    count = weight.shape[-2]
    pairs = (weight.unsqueeze(-2) * weight.unsqueeze(-3)).flatten(-3, -2)  # (out^2, in): less than (N, out, in)
    shared = (variance @ pairs.mT).unflatten(-1, (count, count))  # type: ignore[no-untyped-call]
    result: Tensor = shared + torch.diag_embed(output_variance - shared.diagonal(dim1=-2, dim2=-1))
    return result


def gaussian_log_prob(residual: Tensor, covariance: Tensor) -> Tensor:
    """``log N(residual | 0, covariance)`` by a Cholesky decomposition in float64, at a cost of O(K^3).

    Bayer et al. 2015, section 3.1.1, update inverse and determinant by the formula of Sherman and Morrison instead, for
    one hidden unit after another. That is O(H K^2) for H units, as much as :func:`output_covariance` takes anyhow, but
    in H operations over ``(N, K, K)``, one after another.

    Args:
        residual: Residuals, ``(..., K)``.
        covariance: Covariances ``(..., K, K)``, positive definite.

    Returns:
        Log densities ``(...)``, in nats and in the dtype of the residual.
    """
    factor = torch.linalg.cholesky(covariance.double())
    white: Tensor = torch.linalg.solve_triangular(factor, residual.double().unsqueeze(-1), upper=False)
    terms = white.squeeze(-1).square() + math.log(2.0 * math.pi) + 2.0 * factor.diagonal(dim1=-2, dim2=-1).log()
    result: Tensor = -0.5 * terms.sum(-1)
    return result.to(residual.dtype)


class _Linear(torch.autograd.Function):
    """Both moments in two or three products, and their gradients in two to six more; rows ``(n, in)``.

    Autograd's gradient is the same, with more passes over the weights. All tensors may have one more axis in front, of
    networks that are run side by side.
    """

    @staticmethod
    def forward(
        mean: Tensor,
        variance: Tensor | None,
        weight: Tensor,
        weight_variance: Tensor,
        bias: Tensor | None,
        bias_variance: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        spread = _affine(_second(mean, variance), weight_variance, bias_variance)
        if variance is not None:
            spread = _sum_of_product(spread, variance, weight.square().mT)
        return _affine(mean, weight, bias), spread

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.biases = inputs[4] is not None, inputs[5] is not None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, spread: Tensor) -> tuple[Tensor | None, ...]:
        mean, variance, weight, weight_variance = ctx.saved_tensors
        d_mean = d_variance = d_weight = d_weight_variance = None
        if any(ctx.needs_input_grad[:2]):
            through = spread @ weight_variance
            if ctx.needs_input_grad[0]:
                d_mean = _sum_of_product((2.0 * mean).mul_(through), grad, weight)
            if ctx.needs_input_grad[1]:
                d_variance = _sum_of_product(through, spread, weight.square())
        if ctx.needs_input_grad[2]:
            d_weight = grad.mT @ mean
            if variance is not None:
                d_weight.addcmul_(weight, spread.mT @ variance, value=2)
        if ctx.needs_input_grad[3]:
            d_weight_variance = spread.mT @ _second(mean, variance)
        d_bias, d_bias_variance = (
            g.sum(-2) if there else None for g, there in zip((grad, spread), ctx.biases, strict=True)
        )
        return d_mean, d_variance, d_weight, d_weight_variance, d_bias, d_bias_variance

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor | None) -> Any:
        return _Linear.apply(*batch_first(info.batch_size, in_dims, inputs)), (0, 0)  # type: ignore[no-untyped-call]


def _second(mean: Tensor, variance: Tensor | None) -> Tensor:
    """Second moment."""
    return mean.square() if variance is None else torch.addcmul(variance, mean, mean)


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``functional.linear``, of one network or of several."""
    if weight.ndim == 2:
        return functional.linear(x, weight, bias)
    return x @ weight.mT if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def _sum_of_product(total: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``total + first @ second``, in the memory of ``total``."""
    return total.addmm_(first, second) if total.ndim == 2 else total.baddbmm_(first, second)
