"""The marginal likelihood as a function of the prior precision, from the eigenvalues of the curvature."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_evidence(eigenvalues: Tensor, squared_norm: float, prior_precision: float) -> float:
    """``-lambda |theta|^2 / 2 - sum_i log(1 + e_i / lambda) / 2``, the log marginal likelihood minus the
    log-likelihood.

    Args:
        eigenvalues: Eigenvalues ``e`` of the curvature, ``(D,)`` in float64, not negative.
        squared_norm: Squared norm ``|theta|^2`` of the weights.
        prior_precision: Prior precision ``lambda``.
    """
    return -0.5 * (prior_precision * squared_norm + torch.log1p(eigenvalues / prior_precision).sum().item())


def best_prior_precision(eigenvalues: Tensor, squared_norm: float) -> float:
    """Find the prior precision that maximises :func:`log_evidence`.

    The derivative of the log evidence by ``log(lambda)`` is half of ``gamma(lambda) - lambda |theta|^2``, with the
    number of well-determined weights ``gamma = sum_i e_i / (e_i + lambda)`` (MacKay 1992, eqs. 4.8-4.10). It falls from
    positive to negative, so its zero is unique and the only maximum. It lies between ``min(max_i e_i, 1 / (2
    |theta|^2))``, where ``gamma >= 1/2 >= lambda |theta|^2``, and ``D / |theta|^2``, and is found by bisection on the
    logarithm, to the last digits.

    Raises:
        ValueError: All weights are zero, so that there is no best precision, or all eigenvalues are, so that it is 0.
    """
    top = eigenvalues.max().item()
    for name, value in (("weights", squared_norm), ("curvature", top)):
        if not value > 0.0:
            raise ValueError(f"{name} must not be all zero for a best prior precision, got {value!r} as the largest")
    low, high = math.log(min(top, 0.5 / squared_norm)), math.log(len(eigenvalues) / squared_norm)
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return math.exp(middle)
        precision = math.exp(middle)
        gamma = (eigenvalues / (eigenvalues + precision)).sum().item()
        low, high = (middle, high) if gamma > precision * squared_norm else (low, middle)
