"""The factor of the KL divergence in the losses of variational networks."""

from __future__ import annotations

import math

from bayesadam.checks import check, check_positive, check_temperature


def kl_scale(num_data: float, kl_weight: float, temperature: float) -> float:
    """Factor of the KL divergence in a loss per data point.

    Raises:
        ValueError: A number is out of its range.
    """
    check_positive("num_data", num_data)
    check("kl_weight", kl_weight, "finite and not negative", lambda v: 0 <= v < math.inf)
    check_temperature(temperature)
    return kl_weight * temperature / num_data
