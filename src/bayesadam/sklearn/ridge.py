"""Ridge regression whose penalty is chosen by leave-one-out errors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]

PENALTIES = 10.0 ** np.arange(-4.0, 5.0)
"""Candidates for the penalty, for features and noise of variance 1."""


def ridge(design: Floats, values: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Fit a ridge regression for every column of the values; one decomposition serves all columns and penalties.

    Args:
        design: Standardised features, ``(N, E)``.
        values: Standardised values, ``(N, K)``.
        weight: Weights of the rows, ``(N,)``.

    Returns:
        Intercepts and coefficients, ``(1 + E, K)``, and the mean squared leave-one-out errors, ``(K,)``.
    """
    share = np.sqrt(weight / weight.mean())[:, None]
    a, b = share * np.concatenate([np.ones((len(design), 1)), design], 1), share * values
    dual = len(a) < a.shape[1]
    eigenvalues, vectors = np.linalg.eigh(a @ a.T if dual else a.T @ a)
    kept = eigenvalues > 1e-9 * eigenvalues[-1]
    eigenvalues, vectors = eigenvalues[kept], vectors[:, kept]
    if dual:
        vectors = a.T @ (vectors / np.sqrt(eigenvalues))
    scores, moments = a @ vectors, vectors.T @ (a.T @ b)
    best = np.full(values.shape[1], np.inf)
    chosen = np.zeros_like(moments)
    for penalty in PENALTIES:
        inverse = 1.0 / (eigenvalues + penalty)
        leverage = (scores**2 @ inverse)[:, None]
        shrunk = inverse[:, None] * moments
        errors = (b - scores @ shrunk) / np.maximum(1.0 - leverage, 1e-6)
        error = (errors**2).sum(0) / len(design)
        better = error < best
        best = np.where(better, error, best)
        chosen[:, better] = shrunk[:, better]
    return vectors @ chosen, np.maximum(best, 1e-12)
