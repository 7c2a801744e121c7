"""MF-Exact: the mean-field Gaussian that maximises the evidence lower bound of logistic regression.

Each logit is Gaussian under the posterior, ``x'theta ~ N(x'mu, (x^2)'sigma^2)``, so the bound and its gradient need
one-dimensional expectations only (Khan et al. 2018 take piecewise bounds of Marlin et al. 2011 for them, which are off
by up to 2e-4 per point; the quadrature here is exact).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from experiments.logistic_regression.quadrature import expectations

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Gaussian:
    """A mean-field Gaussian over the weights.

    Attributes:
        mean: ``(D,)``.
        deviation: Standard deviations, ``(D,)``.
    """

    mean: Array
    deviation: Array


@dataclass(frozen=True)
class Optimum:
    """The optimum of the evidence lower bound.

    Attributes:
        posterior: The optimal posterior.
        negative_elbo: Negative evidence lower bound at the optimum, in nats, of the whole data set.
        gradient: Largest absolute derivative at the optimum, with respect to means in units of the initial deviations
            and to log deviations.
        evaluations: Number of evaluations of the bound.
    """

    posterior: Gaussian
    negative_elbo: float
    gradient: float
    evaluations: int


def logits(q: Gaussian, x: Array) -> tuple[Array, Array]:
    """Return the means and standard deviations of ``x'theta``, for ``x`` of shape ``(N, D)``."""
    return x @ q.mean, np.sqrt(np.square(x) @ np.square(q.deviation))


def kl_divergence(q: Gaussian, p: Gaussian) -> float:
    """Return ``KL(q || p)`` in nats, summed over the weights."""
    ratio = q.deviation / p.deviation
    difference = (q.mean - p.mean) / p.deviation
    return float(0.5 * np.sum(np.square(ratio) + np.square(difference) - 1.0) - np.sum(np.log(ratio)))


def negative_elbo(q: Gaussian, x: Array, y: Array, prior: Array) -> float:
    """Return ``E_q[-log p(y | x, theta)] + KL(q || N(0, 1 / prior))`` in nats, summed over the data set.

    Args:
        q: The posterior.
        x: ``(N, D)``.
        y: Labels 0 and 1, ``(N,)``.
        prior: Precisions, ``(D,)``.
    """
    mean, deviation = logits(q, x)
    fit = np.sum(expectations(mean, deviation).softplus - y * mean)
    return float(fit) + kl_divergence(q, Gaussian(np.zeros_like(prior), prior**-0.5))


def mf_exact(x: Array, y: Array, prior: Array, start: Gaussian | None = None) -> Optimum:
    """Maximise the bound by L-BFGS over means and log deviations, in float64.

    The bound is concave in means and deviations, so there is one optimum.

    Args:
        x: ``(N, D)``.
        y: Labels 0 and 1, ``(N,)``.
        prior: Precisions of the prior ``N(0, 1 / prior)``, ``(D,)``.
        start: Initial posterior. By default its means are 0, and its deviations 1 or those of the prior if these are
            smaller. The optimisation uses means in units of its deviations.

    Raises:
        RuntimeError: The optimisation did not converge: a derivative is above 1e-5 at the end.
    """
    if start is None:
        start = Gaussian(np.zeros_like(prior), np.minimum(1.0, prior**-0.5))
    unit, size, squared = start.deviation, len(prior), np.square(x)
    constant = 0.5 * np.sum(1.0 + np.log(prior))

    def loss(point: Array) -> tuple[float, Array]:
        mean, log_deviation = unit * point[:size], point[size:]
        variance = np.exp(2.0 * log_deviation)
        centre = x @ mean
        found = expectations(centre, np.sqrt(squared @ variance))
        divergence = 0.5 * np.sum(prior * (variance + mean * mean)) - np.sum(log_deviation) - constant
        by_mean = unit * (x.T @ (found.sigmoid - y) + prior * mean)
        by_log_deviation = variance * (squared.T @ found.slope + prior) - 1.0
        value = np.sum(found.softplus - y * centre) + divergence
        return float(value), np.concatenate([by_mean, by_log_deviation])

    first = np.concatenate([start.mean / unit, np.log(start.deviation)])
    limits = {"maxiter": 10_000, "maxfun": 20_000, "maxcor": 50, "ftol": 0.0, "gtol": 1e-10}
    found = minimize(loss, first, jac=True, method="L-BFGS-B", options=limits)
    gradient = float(np.abs(found.jac).max())
    if not gradient < 1e-5:
        raise RuntimeError(f"MF-Exact must converge, got a derivative of {gradient:.1e} after {found.nfev} evaluations")
    posterior = Gaussian(unit * found.x[:size], np.exp(found.x[size:]))
    return Optimum(posterior, float(found.fun), gradient, int(found.nfev))
