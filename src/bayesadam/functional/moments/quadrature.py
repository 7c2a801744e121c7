"""Mean and variance of a function of a Gaussian by Gauss-Hermite quadrature.

All formulas use the differences ``g(t) = f(mean + t) - f(mean)`` at nodes in pairs ``t = +-x sd``. The variance is then
a sum of squares, both results are exact where the variance is 0, and in the derivative by ``sd`` the terms that would
be divided by a vanishing ``sd`` cancel within each pair before they are summed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bayesadam.functional.batching import batch_first
from bayesadam.functional.moments.rectifier import elementwise

#: ``f(mean + sign * distance) - f(mean)``, of ``mean``, ``distance >= 0`` and a sign; accurate relative to itself.
Gap = Callable[[Tensor, Tensor, float], Tensor]
#: ``f'`` and ``f''`` of a tensor.
Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]

AT_ONCE = 2**14
"""Number of elements, times nodes, of one call of the function."""


def gauss_hermite(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, nodes: int = 32
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``function(x)`` for ``x ~ N(mean, variance)``, element-wise.

    It is exact for polynomials of degree ``2 nodes - 1`` (the mean) and ``nodes - 1`` (the variance). For other
    functions it is the more accurate the smoother they are over the width of the Gaussian: with 32 nodes, the error of
    softsign's mean is below 2e-4 at standard deviation 0.5 and 2e-3 at 2. In float32 the variance is that of rounded
    values, and its relative error is that of the change of the function over one standard deviation.

    The function is called with a new first axis, for a few nodes at a time: with few elements, calls take most of the
    time, and with many, memory counts. Derivatives are those of the quadrature, by autograd, and include other tensors
    that the function depends on. Where the variance is 0, the derivatives by it are 0.

    Args:
        function: Element-wise function, also of tensors with a further first axis; tensors that it uses are
            differentiated, too.
        mean: Means of any shape.
        variance: Variances of the same shape, not negative.
        nodes: Number of nodes, at least 1.

    Returns:
        Mean and variance, of the inputs' shape and dtype (half precision is computed in float32).

    Raises:
        ValueError: ``nodes`` is less than 1, or the shapes differ.
    """
    if nodes < 1:
        raise ValueError(f"nodes must be at least 1, got {nodes!r}")
    every_point, every_weight = hermite(nodes)

    def moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        std, centre = root(variance), function(mean)
        axes = [1] * mean.ndim
        at_once = max(1, AT_ONCE // max(1, mean.numel()))
        gaps = []
        shift = torch.zeros_like(centre)
        for first in range(0, len(every_point), at_once):
            some = slice(first, first + at_once)
            points, weights = (mean.new_tensor(every[some]).view(-1, *axes) for every in (every_point, every_weight))
            step = points * std
            above, below = function(mean + step) - centre, function(mean - step) - centre
            gaps.append((weights, above, below))
            shift = shift + (weights * (above + below)).sum(0)
        spread = (1.0 - 2.0 * sum(every_weight)) * shift.square()  # at the node 0, if there is one
        for weights, above, below in gaps:
            spread = spread + (weights * ((above - shift).square() + (below - shift).square())).sum(0)
        return centre + shift, spread.clamp_min(0.0)

    return elementwise(moments, mean, variance)


@functools.cache
def hermite(nodes: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The positive nodes of the quadrature for a standard normal, and their weights.

    The node 0 of an odd number is omitted, since differences are 0 there.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    positive = points > 1e-9
    weights = weights[positive] / weights.sum()
    return tuple(points[positive].tolist()), tuple(weights.tolist())


def root(variance: Tensor) -> Tensor:
    """Square root whose derivative at 0 is 0 and not infinite."""
    point = variance == 0
    return torch.where(point, 0.0, torch.where(point, 1.0, variance).sqrt())


def central_moments(gap: Gap, slopes: Slopes, mean: Tensor, variance: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """``E[f] - f(mean)`` and ``Var[f]`` by Gauss-Hermite quadrature; moments of ``f'`` and ``f''`` as gradients.

    Price's theorem: ``dE/d(mean, variance) = (E[f'], E[f''] / 2)``. With it also
    ``dV/d(mean, variance) = (2 Cov(f, f'), E[f'^2] + Cov(f, f''))``. There is no division by the standard deviation, so
    the limits at 0 are correct.

    Args:
        gap: Differences of the function.
        slopes: Derivatives of the function.
        mean: Means of any shape.
        variance: Variances of the same shape, not negative.
        nodes: Number of nodes, even.
    """
    result: tuple[Tensor, Tensor] = _Central.apply(mean, variance, gap, slopes, nodes)  # type: ignore[no-untyped-call]
    return result


class _Central(torch.autograd.Function):
    @staticmethod
    def forward(mean: Tensor, variance: Tensor, gap: Gap, slopes: Slopes, nodes: int) -> tuple[Tensor, Tensor]:
        std = variance.sqrt()
        shift, square = torch.zeros_like(std + mean), torch.zeros_like(std + mean)
        for point, weight in zip(*hermite(nodes), strict=True):
            distance = point * std
            above, below = gap(mean, distance, 1.0), gap(mean, distance, -1.0)
            shift.add_(above + below, alpha=weight)
            square.addcmul_(above, above, value=weight).addcmul_(below, below, value=weight)
        return shift, square.addcmul_(shift, shift, value=-1.0).clamp_min_(0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        mean, variance, ctx.gap, ctx.slopes, ctx.nodes = inputs
        ctx.save_for_backward(mean, variance, output[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_shift: Tensor, d_spread: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        mean, variance, shift = ctx.saved_tensors
        std = variance.sqrt()
        centre = ctx.slopes(mean)[0]
        slope, curve, tilt, bend = (torch.zeros_like(shift) for _ in range(4))
        for point, weight in zip(*hermite(ctx.nodes), strict=True):
            distance = point * std
            for sign in (1.0, -1.0):
                rest = ctx.gap(mean, distance, sign) - shift
                first, second = ctx.slopes(torch.add(mean, distance, alpha=sign))
                slope.add_(first - centre, alpha=weight)
                curve.add_(second, alpha=weight)
                tilt.add_(rest * first, alpha=weight)
                bend.add_(rest * second + first.square(), alpha=weight)
        d_mean = d_shift * slope + 2.0 * d_spread * tilt
        return d_mean, 0.5 * d_shift * curve + d_spread * bend, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], mean: Tensor, variance: Tensor, *rest: Any) -> Any:
        inputs = batch_first(info.batch_size, in_dims[:2], (mean, variance))
        return _Central.apply(*inputs, *rest), (0, 0)  # type: ignore[no-untyped-call]
