"""Log expected densities under Gaussian outputs, by quadrature around the peak of the integrand."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesadam.functional.moments.quadrature import root

NODES = 80
"""Number of quadrature nodes per output."""

REACH = 8.0
"""Standard deviations around the mean and the peak that the nodes cover; beyond them is 1e-15 of the Gaussian."""

FIRST, FARTHEST, REFINEMENTS = 33, 12.0, 24
"""Settings of the search for a peak: the number of points of the first search, which are ``sinh`` of equidistant
numbers; the largest of these numbers; and the number of steps of the second search.
"""

NARROWEST, WIDEST = 8, 2
"""Peaks whose width is between ``4^-NARROWEST`` and ``4^WIDEST`` standard deviations are distinguished."""

NEGLIGIBLE, SMALL = 45.0, 10.0
"""Logarithms of ratios of densities, and of the masses of two peaks, above which the smaller one is left out."""

AT_ONCE = 2**18
"""Number of values that are computed in one call, so that large batches do not need many times their memory."""

_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


Function = Callable[[Tensor], Tensor]


def log_expectation(terms: Function, mean: Tensor, variance: Tensor) -> Tensor:
    """``log E exp(terms(z))`` for ``z ~ N(mean, variance)``, element-wise, also for narrow peaks far from the mean.

    The peaks of the log density and of the integrand are searched for by values, and the nodes are equidistant after a
    ``sinh`` transform with the centre and the width of a peak: dense there, and wide enough for heavy tails and for a
    second peak. Errors in float64 were below 1e-6 for counts up to 1e7 and for gamma distributions, at standard
    deviations from 0.01 to 3. For Student's t, whose integrand may have two peaks, they were below 5e-4 for scales down
    to 0.01 standard deviations, and 0.02 at 1e-4, each where the target is 7 or 8 standard deviations away.

    Derivatives are those of the quadrature, by autograd. The nodes are constants: around a narrow peak in the units of
    the output, so that steep log densities do not cancel each other, and otherwise in standard deviations from the
    mean. Half precision is computed in float32.

    Args:
        terms: Element-wise log density of outputs of the means' shape, with further axes before it; tensors that it
            uses are differentiated, too.
        mean: Means of any shape.
        variance: Variances of the same shape, not negative; where one is 0, the derivative by it is 0.
    """
    dtype = torch.promote_types(mean.dtype, torch.float32)
    mean, std = mean.to(dtype), root(variance.to(dtype))
    with torch.no_grad():
        centre, width, low, high = _place(lambda u: terms(mean + std * u).nan_to_num(nan=-math.inf), std)
        low, high = (((end - centre) / width).asinh() for end in (low, high))
        step = (high - low) / (NODES - 1)
        constant = (width * step).log() - 0.5 * math.log(2.0 * math.pi)
        narrow = width < 0.5
    change = torch.where(narrow, std, 1.0)
    change = (change.detach() / change).log()
    values = []
    for numbers in _numbers(NODES, mean):
        with torch.no_grad():
            place = low + numbers * step
            node = centre + width * place.sinh()
            fixed, weight = mean + std * node, constant + place.cosh().log()
        output = torch.where(narrow, fixed, mean + std * node)
        node = torch.where(narrow, (fixed - mean) / torch.where(narrow, std, 1.0), node)
        values.append(terms(output) - 0.5 * node.square() + weight + change)
    return torch.cat(values).logsumexp(0)


def _place(terms: Function, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Centre, width and ends of the nodes in standard deviations from the mean.

    The centre is the peak of the log density, or that of the integrand if its mass is much larger: between two of them
    it is the narrower one, to which the nodes are fitted.
    """
    grid = torch.linspace(-FARTHEST, FARTHEST, FIRST, dtype=like.dtype, device=like.device)
    places = _leading(grid, like).sinh().expand(-1, *like.shape)
    values = torch.cat([terms(part) for part in torch.split(places, _at_once(like))])
    penalty = _leading(like.new_tensor([0.5, 0.0]), like)  # peaks of the integrand, and of the log density alone

    def height(u: Tensor) -> Tensor:
        return terms(u) - penalty * u.square()

    first = torch.stack([_largest(values - 0.5 * places.square(), grid), _largest(values, grid)])
    peaks = _refined(height, first).sinh()
    width, low, high = _extent(lambda u: terms(u) - 0.5 * u.square(), peaks)
    density = terms(peaks)
    mass = density - 0.5 * peaks.square() + width.log()
    better = mass[1] > mass[0] - SMALL
    better &= density[1] > density[0] + 1.0  # otherwise it has no separate peak
    centre, width, low, high = (torch.where(better, pair[1], pair[0]) for pair in (peaks, width, low, high))
    low = torch.maximum(low, centre.clamp_max(0.0) - REACH)
    return centre, width, low, torch.minimum(high, centre.clamp_min(0.0) + REACH)


def _largest(values: Tensor, grid: Tensor) -> Tensor:
    """The point of the grid with the largest value, or 0 if no value is larger than that at 0."""
    best = values.amax(0)
    return torch.where(best > values[len(grid) // 2], grid[values.argmax(0)], 0.0)


def _refined(height: Function, place: Tensor) -> Tensor:
    """The point with the largest value near a point of the first search, by golden sections."""
    gap = 2.0 * FARTHEST / (FIRST - 1)
    low, high = place - gap, place + gap
    left, right = torch.lerp(high, low, _GOLDEN), torch.lerp(low, high, _GOLDEN)
    at_left, at_right = height(left.sinh()), height(right.sinh())
    for _ in range(REFINEMENTS):
        down = at_left > at_right
        low, high = torch.where(down, low, left), torch.where(down, right, high)
        place = torch.where(down, torch.lerp(high, low, _GOLDEN), torch.lerp(low, high, _GOLDEN))
        value = height(place.sinh())
        left, right = torch.where(down, place, right), torch.where(down, left, place)
        at_left, at_right = torch.where(down, value, at_right), torch.where(down, at_left, value)
    return 0.5 * (low + high)


def _extent(height: Function, peaks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distance from a peak at which the value is lower by at most 1 on both sides, and the ends between which it is not
    negligible.
    """
    top = height(peaks)
    width = torch.full_like(peaks, 4.0**-NARROWEST)
    left = right = 4.0 * width
    for power in range(-NARROWEST, WIDEST + 1):
        distance = 4.0**power
        below, above = height(torch.stack([peaks - distance, peaks + distance]))
        left = torch.where(below > top - NEGLIGIBLE, 4.0 * distance, left)
        right = torch.where(above > top - NEGLIGIBLE, 4.0 * distance, right)
        if power <= 0:
            width = torch.where(torch.minimum(below, above) >= top - 1.0, distance, width)
    return width, peaks - left, peaks + right


def _leading(values: Tensor, like: Tensor) -> Tensor:
    """A vector along a new first axis of a tensor."""
    return values.view(-1, *[1] * like.ndim)


def _at_once(like: Tensor) -> int:
    """How many nodes are computed in one call."""
    return max(1, AT_ONCE // max(1, like.numel()))


def _numbers(count: int, like: Tensor) -> tuple[Tensor, ...]:
    """The numbers of nodes along a new first axis, in parts that are computed in one call each."""
    return torch.split(_leading(torch.arange(count, dtype=like.dtype, device=like.device), like), _at_once(like))
