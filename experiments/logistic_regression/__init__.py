"""Bayesian logistic regression as in Khan et al. 2018, Fig. 2: the shared code of its three experiments.

The model is ``p(y = 1 | x) = sigmoid(x'theta)``. If it has a bias, this is the first weight. Posteriors are mean-field
Gaussians, which are compared with MF-Exact, the optimum of their evidence lower bound. Each logit is Gaussian under the
posterior, ``x'theta ~ N(x'mu, (x^2)'sigma^2)``, so the bound and its gradient need one-dimensional expectations only
(Khan et al. 2018 take piecewise bounds of Marlin et al. 2011 for them, which are off by up to 2e-4 per point; the
quadrature here is exact to rounding for any mean and deviation).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtr

from experiments.data import load

Array = NDArray[np.float64]

_NODES = 80
_REACH = 9.0  # standard deviations; the probability beyond is 2e-19
_RANGE = 40.0  # exp(-40) = 4e-18


@dataclass(frozen=True)
class Expectations:
    """Expectations over ``z ~ N(mean, deviation^2)``, one per element.

    Attributes:
        softplus: ``E log(1 + exp(z))``.
        sigmoid: ``E sigmoid(z)``: the derivative of ``softplus`` with respect to the mean.
        slope: ``E sigmoid'(z)``: the derivative of ``sigmoid`` with respect to the mean. The derivative of ``softplus``
            with respect to the deviation is ``deviation * slope``.
    """

    softplus: Array
    sigmoid: Array
    slope: Array


def expectations(mean: Array, deviation: Array) -> Expectations:
    """Return all three expectations, from the same nodes.

    ``log(1 + exp(z)) = relu(z) + log1p(exp(-|z|))``. The expectation of the first is known; the second is smooth on
    either side of 0 and negligible beyond ``|z| = 40``, so Gauss-Legendre with 80 nodes on each side, within 9 standard
    deviations of the mean, is exact to rounding. (Gauss-Hermite with 64 nodes is off by 0.06 at a deviation of 30.)
    ``sigmoid(z)`` is likewise a step and a rest that decays with ``|z|``.

    Args:
        mean: Any shape.
        deviation: The same shape, not negative.
    """
    safe = np.maximum(deviation, 1e-290)
    edges = [np.clip((edge - mean) / safe, -_REACH, _REACH) for edge in (-_RANGE, 0.0, _RANGE)]
    sigmoid = ndtr(mean / safe)
    softplus = mean * sigmoid + safe * _density(np.clip(mean / safe, -40.0, 40.0))
    slope = np.zeros_like(softplus)
    nodes, weights = _legendre()
    for low, high, sign in ((edges[0], edges[1], 1.0), (edges[1], edges[2], -1.0)):
        half = 0.5 * (high - low)[..., None]
        at = low[..., None] + half * (1.0 + nodes)
        mass = half * weights * _density(at)
        # On its side of 0 it is not positive, except for the rounding of a node next to 0.
        decay = np.exp(np.minimum(sign * (mean[..., None] + safe[..., None] * at), 0.0))
        share = decay / (1.0 + decay)
        softplus += (mass * np.log1p(decay)).sum(-1)
        sigmoid += sign * (mass * share).sum(-1)
        slope += (mass * share / (1.0 + decay)).sum(-1)
    return Expectations(softplus, sigmoid, slope)


def _density(at: Array) -> Array:
    density: Array = np.exp(-0.5 * at * at) / np.sqrt(2.0 * np.pi)
    return density


@cache
def _legendre() -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return nodes, weights


@dataclass(frozen=True)
class Gaussian:
    """A mean-field Gaussian over the weights.

    Attributes:
        mean: ``(D,)``.
        deviation: Standard deviations, ``(D,)``.
    """

    mean: Array
    deviation: Array


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


def mf_exact(x: Array, y: Array, prior: Array, start: Gaussian | None = None) -> Gaussian:
    """Return the posterior that maximises the bound, by L-BFGS over means and log deviations, in float64.

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
    return Gaussian(unit * found.x[:size], np.exp(found.x[size:]))


def symmetric_kl(one: Gaussian, other: Gaussian) -> float:
    """Return ``(KL(one || other) + KL(other || one)) / 2`` in nats: the average, as in the published figures."""
    return 0.5 * (kl_divergence(one, other) + kl_divergence(other, one))


def log_loss(q: Gaussian, x: Array, y: Array) -> float:
    """Return the mean of ``-log E_q p(y | x, theta)`` over the points, in nats, with expectations by quadrature."""
    mean, deviation = logits(q, x)
    right = expectations(np.where(y > 0.5, mean, -mean), deviation).sigmoid
    return float(-np.mean(np.log(np.maximum(right, np.finfo(np.float64).eps))))


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
    data = load(name, split=split)
    x, x_test = (np.c_[np.ones(len(part)), part.double().numpy()] for part in (data.x_train, data.x_test))
    y, y_test = (part.double().numpy() for part in (data.y_train, data.y_test))
    prior = np.full(x.shape[1], float(prior_precision))
    prior[0] = bias_precision
    return Problem(x, y, x_test, y_test, prior, True)
