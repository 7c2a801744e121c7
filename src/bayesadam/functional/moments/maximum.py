"""Mean and variance of the larger of two Gaussians (Clark 1961), and of the largest value in windows of units.

For independent ``a ~ N(m_a, v_a)`` and ``b ~ N(m_b, v_b)``, with ``theta^2 = v_a + v_b``, ``P_a = Phi((m_a - m_b) /
theta)`` the probability that ``a`` is larger, ``P_b = 1 - P_a``, and ``phi`` the standard normal density at the same
place, Clark's equations (2) to (4) are::

    E = max(m_a, m_b) + g              g = theta phi - |m_a - m_b| min(P_a, P_b)
    V = v_a P_a + v_b P_b - g (g + |m_a - m_b|)

without a difference of second moments: ``g`` is the smaller of ``g_a = E - m_a`` and ``g_b = E - m_b``, and the last
term is their product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bayesadam.functional.batching import batch_first
from bayesadam.functional.moments.rectifier import density, elementwise, upper_tail, without_nan

_FAR = 40.0
"""Distance, in standard deviations, of padding below all other values, so that it is never the maximum."""


def maximum(mean_a: Tensor, variance_a: Tensor, mean_b: Tensor, variance_b: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``max(a, b)`` for independent Gaussians, element-wise and exact.

    If both variances are 0, the mean is the larger mean and the variance 0.

    Args:
        mean_a: Means of ``a``, of any shape; all arguments have the same shape.
        variance_a: Variances of ``a``, not negative.
        mean_b: Means of ``b``.
        variance_b: Variances of ``b``, not negative.

    Raises:
        ValueError: The shapes differ.
    """
    shapes = [tuple(value.shape) for value in (mean_a, variance_a, mean_b, variance_b)]
    if len(set(shapes)) > 1:
        raise ValueError(f"all arguments must be of one shape, got {shapes}")
    found: tuple[Tensor, ...] = _Maximum.apply(mean_a, variance_a, mean_b, variance_b)  # type: ignore[no-untyped-call]
    return found[0], found[1]


class _Maximum(torch.autograd.Function):
    """Every operation is one that PyTorch runs in vectors on contiguous tensors, which ``where`` is not."""

    @staticmethod
    def forward(mean_a: Tensor, variance_a: Tensor, mean_b: Tensor, variance_b: Tensor) -> tuple[Tensor, ...]:
        mean_a, variance_a, mean_b, variance_b = (
            value.contiguous() for value in (mean_a, variance_a, mean_b, variance_b)
        )
        gap, theta = mean_a - mean_b, (variance_a + variance_b).sqrt_()
        ratio = without_nan(gap.abs().div_(theta).mul_(math.sqrt(0.5)), 30.0)
        bell = density(ratio)
        tail = upper_tail(ratio, bell)
        ahead = (gap < 0).to(gap.dtype)  # 1 where the mean of b is larger, else 0
        sign = 1.0 - 2.0 * ahead
        share_b = torch.addcmul(ahead, sign, tail)
        share_a = torch.addcmul(1.0 - ahead, sign, tail, value=-1.0)
        least = (bell * theta).addcmul_(gap.abs(), tail, value=-1.0).clamp_min_(0.0)
        gain_a, gain_b = least - gap.clamp_max(0.0), least + gap.clamp_min(0.0)
        mean = torch.maximum(mean_a, mean_b).add_(least)
        variance = (variance_a * share_a).addcmul_(variance_b, share_b).addcmul_(gain_a, gain_b, value=-1.0)
        slope = without_nan(bell.div_(theta), 0.0)
        bend = without_nan((slope * gap).div_(theta).div_(theta), 0.0)
        return mean, variance.clamp_min_(0.0), share_a, share_b, gain_a, gain_b, slope, bend

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, _, *factors = output
        ctx.mark_non_differentiable(*factors)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[1], inputs[3], *factors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean: Tensor | None, d_variance: Tensor | None, *_: None) -> tuple[Tensor, ...]:
        # dE / dm = P, dE / dv = slope / 2; dV / dm_a = 2 (v_a slope - P_a g_a) = -dV / dm_b,
        # dV / dv_a = P_a - slope g_a - bend v_a, dV / dv_b = P_b - slope g_b + bend v_b
        variance_a, variance_b, share_a, share_b, gain_a, gain_b, slope, bend = ctx.saved_tensors
        d_mean = torch.zeros_like(slope) if d_mean is None else d_mean.contiguous()
        to_mean_a, to_mean_b, half = d_mean * share_a, d_mean * share_b, (d_mean * slope).mul_(0.5)
        if d_variance is None:
            return to_mean_a, half, to_mean_b, half
        d_variance = d_variance.contiguous()
        pull = (variance_a * slope).addcmul_(share_a, gain_a, value=-1.0).mul_(d_variance)
        by_a = torch.addcmul(share_a, slope, gain_a, value=-1.0).addcmul_(bend, variance_a, value=-1.0)
        by_b = torch.addcmul(share_b, slope, gain_b, value=-1.0).addcmul_(bend, variance_b)
        to_mean_a, to_mean_b = to_mean_a.add_(pull, alpha=2.0), to_mean_b.sub_(pull, alpha=2.0)
        return to_mean_a, torch.addcmul(half, d_variance, by_a), to_mean_b, torch.addcmul(half, d_variance, by_b)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        return _Maximum.apply(*batch_first(info.batch_size, in_dims, inputs)), (0,) * 8  # type: ignore[no-untyped-call]


def max_pool(
    mean: Tensor,
    variance: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Approximate mean and variance of the largest value in every window of independent Gaussian units.

    Along one axis after the other, pairs of values are replaced by a Gaussian with the moments of :func:`maximum`,
    until one value is left. Windows of two units are exact. For units with equal means and variances the errors of the
    mean and of the standard deviation are, in standard deviations of a unit, .001 and .02 for 4 units (a window of 2 x
    2), .01 and .05 for 9 (3 x 3) and .03 and .08 for 16 (4 x 4). For units with random means and with variances that
    differ by factors of a hundred and more they were at most .06 and .14, .1 and .2, and .1 and .3 of the largest
    standard deviation. All units are treated as independent, and so are windows that overlap.

    Args:
        mean: Means ``(..., *sizes)``, with as many last axes as ``kernel_size`` has numbers.
        variance: Variances of the same shape, not negative.
        kernel_size: Size of the windows along each of the last axes.
        stride: Stride of the windows; default ``kernel_size``.
        padding: Padding on both sides, with values that are never the largest; default none.
        dilation: Distance between the units of a window; default 1.
        ceil_mode: Whether windows may extend beyond the end.

    Raises:
        ValueError: The shapes differ.
    """
    axes = len(kernel_size)
    strides, paddings = stride or kernel_size, padding or [0] * axes
    dilations = dilation or [1] * axes

    def pooled(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        for place, numbers in enumerate(zip(kernel_size, strides, paddings, dilations, strict=True)):
            mean, variance = _along(mean, variance, place - axes, *numbers, ceil_mode)
        return mean, variance

    return elementwise(pooled, mean, variance)


def _along(
    mean: Tensor, variance: Tensor, axis: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> tuple[Tensor, Tensor]:
    """Pool along one axis."""
    size, reach = mean.shape[axis], dilation * (kernel - 1) + 1
    count = (math.ceil if ceil_mode else math.floor)((size + 2 * padding - reach) / stride) + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1  # a window must begin within the input or its padding on the left
    ends = (padding, max(0, (count - 1) * stride + reach - size - padding))
    mean, variance = mean.movedim(axis, -1), variance.movedim(axis, -1)
    if any(ends):
        floor = (mean.amin() - _FAR * (variance.amax() + 1.0).sqrt()).detach().item()
        mean, variance = functional.pad(mean, ends, value=floor), functional.pad(variance, ends)
    if stride == kernel and dilation == 1:
        shape = (*mean.shape[:-1], count, kernel)
        windows = (values[..., : count * kernel].reshape(shape) for values in (mean, variance))
        parts = list(zip(*(values.unbind(-1) for values in windows), strict=True))
    else:
        starts = [slice(offset, offset + (count - 1) * stride + 1, stride) for offset in range(0, reach, dilation)]
        parts = [(mean[..., start], variance[..., start]) for start in starts]
    parts = [(first.movedim(-1, axis), second.movedim(-1, axis)) for first, second in parts]
    while len(parts) > 1:
        pairs = [maximum(*a, *b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
    first, second = parts[0]
    return first, second
