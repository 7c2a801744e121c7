"""Mean and variance of the larger of two Gaussians (Clark 1961), and of the largest value in windows of units.

For independent ``a ~ N(m_a, v_a)`` and ``b ~ N(m_b, v_b)`` with ``m_a >= m_b``::

    max(a, b) = a + relu(b - a)
    E = m_a + E_relu        V = V_relu + v_a (1 - 2 Phi(al)),   al = (m_b - m_a) / sqrt(v_a + v_b) <= 0

where ``E_relu`` and ``V_relu`` are the moments of the rectified ``N(m_b - m_a, v_a + v_b)``. These are Clark's
equations (2) to (4) without their difference of second moments: both terms of ``V`` are positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bayesadam.functional.moments.rectifier import elementwise, relu

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
    swapped = mean_a < mean_b
    high, low = torch.where(swapped, mean_b, mean_a), torch.where(swapped, mean_a, mean_b)
    spread = torch.where(swapped, variance_b, variance_a)
    total = variance_a + variance_b
    gain, found = relu(low - high, total)
    # Where the means are far apart, the ratio and its gradient would be out of the dtype's range, or 0 / 0.
    far = (high - low).square() >= 400.0 * total
    ratio = torch.where(far, 20.0, high - low) / torch.where(far, 1.0, 2.0 * total).sqrt()
    return high + gain, found + spread * torch.erf(ratio)


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
    parts = [
        tuple(
            values[..., offset : offset + (count - 1) * stride + 1 : stride].movedim(-1, axis)
            for values in (mean, variance)
        )
        for offset in range(0, reach, dilation)
    ]
    while len(parts) > 1:
        pairs = [maximum(*a, *b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
    first, second = parts[0]
    return first, second
