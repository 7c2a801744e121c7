"""Scores of a mean-field posterior of logistic regression, which are computed without sampling."""

from __future__ import annotations

import numpy as np

from experiments.logistic_regression.mf_exact import Array, Gaussian, kl_divergence, logits
from experiments.logistic_regression.quadrature import expectations


def symmetric_kl(one: Gaussian, other: Gaussian) -> float:
    """Return ``(KL(one || other) + KL(other || one)) / 2`` in nats: the average, as in the published figures."""
    return 0.5 * (kl_divergence(one, other) + kl_divergence(other, one))


def log_loss(q: Gaussian, x: Array, y: Array) -> float:
    """Return the mean of ``-log E_q p(y | x, theta)`` over the points, in nats, with expectations by quadrature."""
    mean, deviation = logits(q, x)
    right = expectations(np.where(y > 0.5, mean, -mean), deviation).sigmoid
    return float(-np.mean(np.log(np.maximum(right, np.finfo(np.float64).eps))))
