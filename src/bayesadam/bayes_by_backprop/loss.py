"""The factor of the KL divergence in the losses of variational networks."""

from __future__ import annotations

import math

from bayesadam.checks import check_positive, check_temperature


def kl_scale(num_data: float, kl_weight: float, temperature: float) -> float:
    """Factor of the KL divergence in a loss per data point.

    Raises:
        ValueError: A number is out of its range.
    """
    check_positive("num_data", num_data)
    if not 0 <= kl_weight < math.inf:
        raise ValueError(f"kl_weight must be finite and not negative, got {kl_weight!r}")
    check_temperature(temperature)
    return kl_weight * temperature / num_data
