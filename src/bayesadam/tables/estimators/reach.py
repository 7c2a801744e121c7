"""The region of the training rows, and the variance that is added outside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesadam.tables.estimators.calibration import effective_rows

Floats = NDArray[np.float64]

INSIDE = 0.99
"""Share of the training rows that are inside the region."""


@dataclass(frozen=True)
class Reach:
    """A sphere around the mean that contains the training rows, and their number.

    Attributes:
        square: Squared radius, in standardised inputs.
        rows: Effective number of rows.
    """

    square: float
    rows: float

    @classmethod
    def of(cls, inputs: Floats, weight: Floats) -> Reach:
        """Create the region of standardised training rows, ``(N, D)``, with weights ``(N,)``."""
        squares = _squares(inputs)
        order = np.argsort(squares)
        share = weight[order].cumsum() / weight.sum()
        return cls(float(squares[order[np.searchsorted(share, INSIDE)]]), effective_rows(weight))

    def joined(self, other: Reach) -> Reach:
        """Return the region of the rows of both regions."""
        return Reach(max(self.square, other.square), self.rows + other.rows)

    def leverage(self, inputs: Floats) -> Floats:
        """Return the additional epistemic variance, in units of the variance of the noise, ``(N,)``; it is 0 inside.

        The units of a network saturate far away from the data, so that its variance may stop growing. The variance of a
        linear trend does not: for standardised, uncorrelated inputs ``z``, a least squares fit has the variance ``noise
        (1 + |z|^2) / rows``. The difference between this variance and its value at the boundary of the region is added.
        """
        return np.maximum(_squares(inputs) - self.square, 0.0) / self.rows


def _squares(inputs: Floats) -> Floats:
    return np.asarray(np.square(inputs, dtype=np.float64).sum(1))
