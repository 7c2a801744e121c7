"""The toy data: sixty points around two centres, without a bias."""

from __future__ import annotations

import numpy as np

from experiments.logistic_regression.mf_exact import Array
from experiments.logistic_regression.problem import Problem

PRIOR = 0.01
"""Prior precision of both weights."""


def draw(seed: int) -> Problem:
    """Draw 30 points of class 1 around (1, 5), deviation 1, and 30 of class 0 around (-5, 1), deviation 2.2.

    The published points were drawn with MATLAB's old generators. NumPy's generator gives different points.
    """
    generator = np.random.RandomState(seed)  # its streams do not change between versions
    positive = generator.normal((1.0, 5.0), 1.0, (30, 2))
    negative = generator.normal((-5.0, 1.0), 2.2, (30, 2))
    y = np.repeat([1.0, 0.0], 30)
    return Problem(np.r_[positive, negative], y, np.empty((0, 2)), np.empty(0), np.full(2, PRIOR), False)


def grid(problem: Problem, reach: float, step: float) -> tuple[Array, Array]:
    """Return the exact posterior on a square grid: the axis ``(n,)``, and masses ``(n, n)`` that add up to 1.

    Rows are values of the second weight, columns of the first.
    """
    axis = np.arange(-reach, reach + step / 2, step)
    first, second = np.meshgrid(axis, axis)
    weights = np.stack([first.ravel(), second.ravel()])
    logits = problem.x @ weights
    log_joint = (problem.y[:, None] * logits - np.logaddexp(0.0, logits)).sum(0)
    log_joint -= 0.5 * (problem.prior[:, None] * weights**2).sum(0)
    mass = np.exp(log_joint - log_joint.max())
    return axis, (mass / mass.sum()).reshape(first.shape)
