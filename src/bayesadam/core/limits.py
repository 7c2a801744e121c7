"""Keeping posterior precisions positive where curvature is negative and the rule itself does not (Khan et al. 2018,
eq. 63).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bayesadam.core.dense import NotPositive
from bayesadam.core.layout import Layout
from bayesadam.sharding import local

BACKTRACK = 0.5
"""Fraction of the largest admissible rate that back-tracking uses, so that no precision more than halves."""


def largest_rate(layout: Layout, kept: Mapping[Tensor, Tensor], scales: Mapping[Tensor, float]) -> float:
    """The largest rate at which the precisions of all weights stay positive in the next step, or half of it.

    With ``correction="backtracking"`` it is half of the largest one; with ``None`` it is infinite.

    Args:
        layout: The flats.
        kept: Curvatures by parameter.
        scales: Factors of the curvatures of parameters with a gradient.

    Raises:
        NotPositive: The correction is ``None``, and a precision would become negative at the rule's own rate.
        FloatingPointError: A curvature is not a number.
    """
    rule: Any = layout.rule
    correction, smallest = layout.first["correction"], math.inf
    for flat in layout.known():
        for number, parameter in enumerate(flat.parameters):
            if parameter not in scales or not local(parameter).numel():
                continue
            state = {name: flat.part(flat.tensors[name], number) for name in rule.state}
            hp = flat.hyper(rule, number)
            limit = float(rule.largest_rate(state, kept[parameter] * scales[parameter], hp))
            if math.isnan(limit):
                name = layout.name_of(parameter)
                raise FloatingPointError(f"the curvature of parameter {name} must be finite, got inf or nan")
            if correction is None and not limit > rule.rate(hp):
                raise NotPositive
            smallest = min(smallest, limit)
    return BACKTRACK * smallest if correction == "backtracking" else math.inf
