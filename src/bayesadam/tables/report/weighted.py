"""Statistics of rows that count by their weights, ``(N,)``. With ``None`` all rows count alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def mean_and_error(values: Any, weight: Floats | None = None) -> tuple[float, float]:
    """Return the mean of two values or more, and its standard error."""
    share = np.ones(len(values)) if weight is None else weight
    share = share / share.sum()
    mean = float(share @ values)
    return mean, float(np.sqrt((share**2 @ (values - mean) ** 2) * len(values) / (len(values) - 1)))


def quantile(values: Floats, levels: Any, weight: Floats | None = None) -> Any:
    """Return quantiles, between which values are interpolated."""
    if weight is None:
        return np.quantile(values, levels)
    order = np.argsort(values)
    share = weight[order] / weight.sum()
    return np.interp(levels, np.cumsum(share) - 0.5 * share, values[order])


def effective(count: int, weight: Floats | None = None) -> float:
    """Return the number of equal rows that tell as much about a mean as ``count`` rows: ``(sum w)^2 / sum w^2``."""
    return float(count) if weight is None else float(weight.sum() ** 2 / (weight**2).sum())
