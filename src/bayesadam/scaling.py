"""Standardisation of columns of numbers before a network sees them; the same rule for matrices and for tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LARGEST = 1e38
"""Largest number that is accepted, since numbers are used in single precision, which ends at 3.4e38."""
ROUNDING = 16 * np.finfo(np.float64).eps
"""Largest standard deviation, as a share of the largest number of a column, that counts as rounding."""

RARE = 5.0
"""Largest difference of the two standardised values of a column with two values."""

_ROWS = 8_192
"""Number of rows that are standardised at a time, which limits the memory for double precision."""


def column_scales(values: Array, weight: Array | None = None) -> tuple[Array, Array]:
    """Mean and standard deviation of every column in float64; constant columns have a deviation of 1.

    Moments are those of the differences from one of the rows, so that no digits are lost if all numbers of a column are
    far from 0. Columns that differ by rounding alone are constant, too. The mean of equal numbers is exactly their
    value.

    Args:
        values: Numbers of any type, ``(N, D)``.
        weight: Weights of the rows, ``(N,)``; ``None`` weights all rows equally.

    Returns:
        Means and deviations, each ``(D,)``.
    """
    origin = values[0 if weight is None else np.argmax(weight > 0)].astype(np.float64)
    shifted = values - origin
    mean = np.average(shifted, axis=0, weights=weight)
    shifted -= mean
    std = np.sqrt(np.average(np.square(shifted, out=shifted), axis=0, weights=weight))
    return origin + mean, np.where(std <= ROUNDING * np.abs(origin), 1.0, std)


def input_scales(values: Array, weight: Array | None = None) -> tuple[Array, Array]:
    """Shift and scale of inputs: the columns' means, and their deviations by :func:`in_one_unit`.

    The scale of a column with two values is at least their difference divided by ``RARE``. The rows of a rare truth
    value would otherwise be so far from all others that nothing is known about them.

    Args:
        values: Numbers of any type, ``(N, D)``.
        weight: Weights of the rows, ``(N,)``; ``None`` weights all rows equally.

    Returns:
        Shifts and scales, each ``(D,)``, float64.
    """
    mean, std = column_scales(values, weight)
    least, largest = values.min(0), values.max(0)
    two = ((values == least) | (values == largest)).all(0)
    scale = in_one_unit(std, least, largest)
    return mean, np.where(two, np.maximum(scale, (largest - least) / RARE), scale)


def in_one_unit(std: Array, least: Array, largest: Array) -> Array:
    """The columns' deviations, or for columns in one unit the root of their mean variance.

    Columns are taken to be in one unit (pixels, ratings, truth values) if all columns that vary have the same smallest
    value, and at least half of them the same largest one. If each column were divided by its own deviation, a pixel
    that is nearly always blank would weigh as much as any other.

    Args:
        std: Deviation of every column, ``(D,)``.
        least: Smallest value of every column, ``(D,)``.
        largest: Largest value of every column, ``(D,)``.
    """
    varies = least < largest
    if varies.sum() > 1:
        least, largest = least[varies], largest[varies]
        if (least == least[0]).all() and 2 * (largest == largest.max()).sum() >= len(largest):
            return np.where(varies, np.sqrt(np.mean(np.square(std[varies]))), 1.0)
    return std


def standardized(values: Array, mean: Array, std: Array, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Compute ``(values - mean) / std`` in float64 and return it in float32.

    Args:
        values: Numbers of any type, ``(N, D)``.
        mean: Means, ``(D,)``, float64.
        std: Deviations, ``(D,)``, float64.
        out: Array ``(N, D)`` to write into; by default a new one.
    """
    out = np.empty(values.shape, dtype=np.float32) if out is None else out
    for first in range(0, len(values), _ROWS):
        rows = slice(first, first + _ROWS)
        np.divide(values[rows] - mean, std, out=out[rows])
    return out
