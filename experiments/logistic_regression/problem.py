"""The data of an experiment: halves of a data set in float64, with a column of ones and prior precisions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.logistic_regression.mf_exact import Array


@dataclass(frozen=True)
class Problem:
    """Logistic regression on one training set.

    Attributes:
        x: Inputs ``(N, D)``; if ``bias`` is true, the first column is 1.
        y: Labels 0 and 1, ``(N,)``.
        x_test: Test inputs, as ``x``; they may have no rows.
        y_test: Test labels, as ``y``.
        prior: Precisions of the prior ``N(0, 1 / prior)``, ``(D,)``.
        bias: Whether the first weight is a bias.
    """

    x: Array
    y: Array
    x_test: Array
    y_test: Array
    prior: Array
    bias: bool


def halves(name: str, split: int, prior_precision: float, bias_precision: float) -> Problem:
    """Load random halves of a data set, with features as in its files. The bias has its own prior precision."""
    import bayesadam as ba

    data = ba.data.load(name, split=split)
    x, x_test = (np.c_[np.ones(len(part)), part.double().numpy()] for part in (data.x_train, data.x_test))
    y, y_test = (part.double().numpy() for part in (data.y_train, data.y_test))
    prior = np.full(x.shape[1], float(prior_precision))
    prior[0] = bias_precision
    return Problem(x, y, x_test, y_test, prior, True)
