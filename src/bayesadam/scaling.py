"""How columns of numbers are shifted and scaled before a network sees them: one rule for matrices and for tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LARGEST = 1e38
"""Numbers are used in single precision, which ends at 3.4e38."""
_ROWS = 8_192
"""Rows that are standardised at a time: in double precision, of which there are then never many."""


def column_scales(values: Array, weight: Array | None = None) -> tuple[Array, Array]:
    """Mean and standard deviation of every column in float64; a deviation of 1 for constant ones.

    Args:
        values: ``(N, D)``, of any type of number.
        weight: Of the rows, ``(N,)``; ``None``: all alike.

    Returns:
        Two of ``(D,)``.
    """
    if weight is None:
        mean, std = values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64)
    else:
        mean = np.average(values, axis=0, weights=weight)
        std = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
    constant = std <= 1e-12 * np.maximum(1e-300, np.abs(mean))
    return mean, np.where(constant | (std == 0), 1.0, std)


def input_scales(values: Array, weight: Array | None = None) -> tuple[Array, Array]:
    """What inputs are shifted and divided by: the columns' means, and their deviations by :func:`in_one_unit`.

    Args:
        values: ``(N, D)``.
        weight: Of the rows, ``(N,)``; ``None``: all alike.

    Returns:
        Two of ``(D,)``, float64.
    """
    mean, std = column_scales(values, weight)
    return mean, in_one_unit(std, values.min(0), values.max(0))


def in_one_unit(std: Array, least: Array, largest: Array) -> Array:
    """The columns' deviations, or the root of their mean variance for all that vary where all are in one unit.

    Columns are taken to be in one unit (pixels, ratings, truth values) where all that vary have the same least value,
    and half of them or more the same largest. Divided by its own small deviation, a pixel that is nearly always blank
    would weigh as much as any other.

    Args:
        std: Of every column, ``(D,)``.
        least: Likewise.
        largest: Likewise.
    """
    varies = least < largest
    if varies.sum() > 1:
        least, largest = least[varies], largest[varies]
        if (least == least[0]).all() and 2 * (largest == largest.max()).sum() >= len(largest):
            return np.where(varies, np.sqrt(np.mean(np.square(std[varies]))), 1.0)
    return std


def standardized(values: Array, mean: Array, std: Array, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """``(values - mean) / std``, computed in float64 and kept in float32.

    Args:
        values: ``(N, D)``, of any type of number.
        mean: ``(D,)``, float64.
        std: Likewise.
        out: ``(N, D)`` to write into; by default a new array.
    """
    out = np.empty(values.shape, dtype=np.float32) if out is None else out
    for first in range(0, len(values), _ROWS):
        rows = slice(first, first + _ROWS)
        np.divide(values[rows] - mean, std, out=out[rows])
    return out
