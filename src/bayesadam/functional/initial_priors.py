"""Priors from the values that parameters are initialised with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesadam.modules.sharding import full

_WIDER = 10.0
"""Factor of the variance of a prior in that of the initial values."""


def initial_priors(parameters: Sequence[Tensor]) -> list[float]:
    """Precisions of priors whose variance is ten times that of each parameter's values.

    This is the scale of its initialisation, about ``fan_in / 3`` for PyTorch's layers, rounded to a power of two.
    If all values are equal (a shift of 0, a gain of 1), they have no scale, and the variance is taken as 1. A device is
    waited for once for all parameters.
    """
    if not parameters:
        return []
    values = [full(parameter.detach()).double() for parameter in parameters]
    variances = [value.var(correction=0) if value.numel() else value.new_zeros(()) for value in values]
    read = torch.stack([variance.to(variances[0].device) for variance in variances]).tolist()
    usable = [variance if 1e-12 < variance < math.inf else 1.0 for variance in read]
    return [2.0 ** round(math.log2(1.0 / (_WIDER * variance))) for variance in usable]
