"""How far the training rows reach, and the variance that is added beyond."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesadam.sklearn.calibration import effective_rows

Floats = NDArray[np.float64]

INSIDE = 0.99
"""Share of the training rows that are within reach."""


@dataclass(frozen=True)
class Reach:
    """Squared distance from the mean within which training rows lie, and how many there are.

    Attributes:
        square: Of the distance of standardised inputs.
        rows: Effective number of rows.
    """

    square: float
    rows: float

    @classmethod
    def of(cls, inputs: Floats, weight: Floats) -> Reach:
        """Of training rows, ``(N, D)`` standardised, and their weights, ``(N,)``."""
        squares = _squares(inputs)
        order = np.argsort(squares)
        share = weight[order].cumsum() / weight.sum()
        return cls(float(squares[order[np.searchsorted(share, INSIDE)]]), effective_rows(weight))

    def joined(self, other: Reach) -> Reach:
        """Of the rows of both."""
        return Reach(max(self.square, other.square), self.rows + other.rows)

    def leverage(self, inputs: Floats) -> Floats:
        """What is added to the epistemic variance, over the variance of the noise, ``(N,)``: 0 within reach.

        The units of a network saturate far away from the data, and its variance may stop growing. That of a linear
        trend does not: a least squares fit has the variance ``noise (1 + |z|^2) / rows`` at standardised, uncorrelated
        inputs ``z``. What exceeds its value at the end of reach is added.
        """
        return np.maximum(_squares(inputs) - self.square, 0.0) / self.rows


def _squares(inputs: Floats) -> Floats:
    return np.asarray(np.square(inputs, dtype=np.float64).sum(1))
