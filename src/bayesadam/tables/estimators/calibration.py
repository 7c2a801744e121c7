"""Calibration on held-out rows: scales of variances and outputs, a temperature, and weights of other models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize, nnls
from torch import Tensor

from bayesadam.calibration import least
from bayesadam.likelihoods import Likelihood, NegativeBinomial, Poisson
from bayesadam.tables.estimators.named_likelihoods import minimise

Floats = NDArray[np.float64]

ROUNDS = 3
"""Number of times that what depends on each other is fitted in turns: the weights of the models and the error, or the
parameters of a likelihood and the variance of its outputs."""

PRIOR = 2
"""Number of rows that the prior of each factor counts as. The standard deviation of its logarithm is then 1."""

LOWEST, HIGHEST = np.array([math.log(1e-3), math.log(1e-6), 0.0]), np.array([math.log(1e3), math.log(1e6), 1.0])
"""Bounds of the logarithms of both factors, and of the strength."""

STEP = 1.5
"""Factor between the points at which the curvature of a loss is measured."""

LOG_MEANS = Poisson, NegativeBinomial
"""Likelihoods of counts, whose output is the logarithm of the mean."""

SMALLEST = 1e-12
"""Lower bound of variances of standardised targets."""


def effective_rows(weight: Floats | Tensor) -> float:
    """Return the number of rows of equal weight that carry the same information: ``(sum w)^2 / sum w^2``."""
    return float(weight.sum() ** 2 / (weight**2).sum())


class Scales(NamedTuple):
    """Factors of the predictive variance ``epistemic e + aleatoric s exp(strength g)`` of one output.

    Attributes:
        epistemic: Factor of the epistemic variance.
        aleatoric: Factor of the variance of the noise.
        strength: Factor in [0, 1] of the pattern ``g`` of the noise, as far as the rows support it; 0 without a
            pattern.
        error: Standard deviation of the logarithm of ``epistemic``, given the rows. Above about 0.5 the rows hardly
            distinguish epistemic from aleatoric variance.
    """

    epistemic: float
    aleatoric: float
    strength: float
    error: float


def variance_scales(
    residual: Floats,
    epistemic: Floats,
    aleatoric: Floats,
    weight: Floats,
    *,
    pattern: Floats | None = None,
    fixed_noise: bool = False,
) -> Scales:
    """Return the factors ``(a, b)`` for which ``N(0, a epistemic + b aleatoric)`` describes the residuals best.

    They maximise the likelihood times a log-normal prior around 1, which counts as two rows for each factor. The prior
    matters if both variances are nearly constant over the rows, because the rows then determine only their sum. The two
    are distinguished by rows whose epistemic variance is larger than that of the other rows; usually these are far away
    from the others.

    Args:
        residual: Residuals of held-out rows, ``(N,)``.
        epistemic: Predicted epistemic variances of these rows, ``(N,)``.
        aleatoric: Predicted variances of the noise, ``(N,)``. They are nearly constant if the noise was learned.
        weight: Weights of the rows, ``(N,)``, which add up to the number of independent rows.
        pattern: Pattern ``g`` of the noise, ``(N,)``: its variance is multiplied by ``b exp(strength g)``.
        fixed_noise: Whether to keep ``b = 1``.
    """
    square = residual**2
    force = 0.5 * PRIOR
    shape = np.zeros_like(residual) if pattern is None else pattern
    prior = np.array([force, force, 0.0])
    free = np.array([True, not fixed_noise, pattern is not None])

    def scored(point: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the loss of every row, its slopes, and squared residuals divided by variances."""
        noise = np.exp(point[1] + point[2] * shape) * aleatoric
        variance = np.maximum(np.exp(point[0]) * epistemic + noise, SMALLEST)
        part, ratio = noise / variance, square / variance
        return ratio + np.log(variance), np.stack([1.0 - part, part, part * shape]), ratio

    def loss(point: Floats) -> tuple[float, Floats]:
        losses, slopes, ratio = scored(point)
        away = prior * point
        return float(0.5 * (weight @ losses + away @ point)), 0.5 * slopes @ (weight * (1.0 - ratio)) + away

    size = math.log(max(float(np.average(square, weights=weight)), SMALLEST))
    means = [math.log(max(float(np.average(part, weights=weight)), SMALLEST)) for part in (epistemic, aleatoric)]
    starts = [(size - means[0] - 0.7, size - means[1] - 0.7), (-3.0, size - means[1])]
    starts += [(size - means[0], -3.0), (0.0, 0.0)]
    points = [np.clip([a, 0.0 if fixed_noise else b, 0.5 if free[2] else 0.0], LOWEST, HIGHEST) for a, b in starts]
    options: dict[str, Any] = {"jac": True, "options": {"ftol": 1e-14, "gtol": 1e-8}}
    ends = [(np.where(free, LOWEST, point), np.where(free, HIGHEST, point)) for point in points]
    optima = [minimize(loss, p, bounds=Bounds(*limits), **options) for p, limits in zip(points, ends, strict=True)]
    best = min(optima, key=lambda one: float(one.fun)).x
    _, slopes, ratio = scored(best)
    curvature = 0.5 * (slopes * weight) @ slopes.T
    kurtosis = np.average(ratio**2, weights=weight) / max(np.average(ratio, weights=weight) ** 2, SMALLEST)
    precision = curvature / max(1.0, 0.5 * (kurtosis - 1.0)) + np.diag(prior)  # heavy tails: rows are less informative
    inner = free & (best > LOWEST) & (best < HIGHEST)
    inner[0] = True
    error = math.sqrt(np.linalg.inv(precision[np.ix_(inner, inner)] + 1e-12 * np.eye(inner.sum()))[0, 0])
    return Scales(math.exp(best[0]), math.exp(best[1]), float(best[2]), error)


def output_scale(
    outputs: Sequence[Tensor],
    places: Sequence[Tensor],
    likelihood: Likelihood,
    targets: Tensor,
    weight: Tensor,
) -> Scales:
    """Return the factor, in [0.001, 1000], of the members' variances of outputs with the largest held-out likelihood,
    and fit the likelihood's own parameters to the same rows.

    In training these parameters start from those of a constant output, and early stopping may end it on their way to
    those of the network. This is for likelihoods that are not Gaussian, in place of :func:`variance_scales`. A held-out
    row is predicted by the mixture of the likelihood over all draws of the members that did not see it. The logarithm
    of the factor has the prior of :func:`variance_scales`.

    Args:
        outputs: Draws of the outputs of each member for the rows that it did not see, ``(S, n, K)``.
        places: Indices of these rows among the held-out rows, ``(n,)`` for each member.
        likelihood: Likelihood of a target given the outputs, whose learned parameters are changed.
        targets: Targets of the held-out rows, ``(N, K)``.
        weight: Weights of these rows, ``(N,)``, which add up to the number of independent rows.

    Returns:
        The factor as ``epistemic``, with its error; ``aleatoric`` is 1.
    """
    force = 0.25 * PRIOR
    components = torch.zeros(len(targets), dtype=torch.float64)
    for draws, rows in zip(outputs, places, strict=True):
        components[rows] += len(draws)

    def expected(factor: float) -> Tensor:
        """Return the negative log-likelihood of the rows, summed."""
        total = torch.full((len(targets),), -math.inf, dtype=torch.float64)
        for draws, rows in zip(outputs, places, strict=True):
            density = likelihood.log_density(scaled(draws, factor, likelihood), targets[rows]).double()
            total = total.index_copy(0, rows, torch.logaddexp(total[rows], density.logsumexp(0)))
        return -(weight * (total - components.log())).sum()

    @torch.no_grad()
    def loss(factor: float) -> float:
        value = force * math.log(factor) ** 2 + float(expected(factor))
        return value if math.isfinite(value) else math.inf

    learned = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]
    single = len(outputs[0]) == 1  # members without posteriors
    factor, value = 1.0, 0.0
    for _ in range(ROUNDS if learned else 1):
        if learned:
            minimise(learned, partial(expected, factor))
        if not single:
            factor, value = least(loss, 1e-3, 1e3, steps=30)
    if single:
        return Scales(1.0, 1.0, 0.0, 0.0)
    curvature = (loss(factor * STEP) - 2.0 * value + loss(factor / STEP)) / math.log(STEP) ** 2
    return Scales(factor, 1.0, 0.0, max(curvature, 2.0 * force) ** -0.5)


def scaled(outputs: Tensor, factor: float, likelihood: Likelihood) -> Tensor:
    """Multiply the variance of draws ``(S, ...)`` of a member's outputs by a factor.

    With a likelihood of counts, the draws of each row are also shifted, so that the average of their means is the mean
    at the average output. Otherwise predicted means would grow with the variance, as the exponential is convex.
    """
    center = outputs.mean(0)
    draws = outputs if factor == 1.0 else torch.lerp(center, outputs, math.sqrt(factor))
    if not isinstance(likelihood, LOG_MEANS):
        return draws
    return draws - ((draws - center).logsumexp(0) - math.log(len(draws)))


def mean_weights(predictions: Floats, target: Floats, weight: Floats, excess: float) -> Floats:
    """Return the weights, not negative, of the models whose weighted sum has the least squared error on held-out rows.

    The first model is the ensemble of networks. A held-out row is predicted by few of its members, whose mean varies
    more than that of all members, which makes the networks look worse than they are. This excess is subtracted. The
    weights are shrunk to the networks alone by a Gaussian prior that counts as two rows with the squared error
    of the weighted sum.

    Args:
        predictions: Predictions of all models for rows that they have not seen, ``(1 + P, N)``.
        target: Targets of these rows, ``(N,)``.
        weight: Weights of the rows, ``(N,)``, which add up to the number of independent rows.
        excess: Variance of the networks' predictions, less that of the mean of all members.

    Returns:
        ``(1 + P,)``.
    """
    share = weight / weight.sum()
    products, moments = (predictions * share) @ predictions.T, predictions @ (share * target)
    center: Floats = np.eye(len(products))[0]
    weights = center
    for _ in range(ROUNDS):
        error = share @ (weights @ predictions - target) ** 2
        prior = max(PRIOR * float(error) / weight.sum(), SMALLEST)
        gram = products + prior * np.eye(len(products))
        unexplained = 1.0 / np.linalg.inv(gram)[0, 0]  # of the networks, which the other models do not explain
        gram[0, 0] -= min(excess, 0.9 * unexplained)
        root = np.linalg.cholesky(gram)
        weights = np.asarray(nnls(root.T, np.linalg.solve(root, moments + prior * center))[0])
    return weights


def temperature(log_probs: Tensor, labels: Tensor, weight: Tensor) -> float:
    """Return the temperature in [0.1, 10] with the largest likelihood of held-out labels.

    Args:
        log_probs: Log probabilities of the components of an equally weighted mixture, ``(S, N, C)``.
        labels: ``(N,)``.
        weight: Weights of the rows, ``(N,)``, which add up to the number of independent rows.
    """

    def loss(value: float) -> float:
        density = tempered(log_probs, value).logsumexp(0).gather(1, labels[:, None])[:, 0]
        return -float((weight * density).sum())

    return least(loss, 0.1, 10.0, steps=40)[0]


def pool(log_probs: Tensor, linear: Tensor, labels: Tensor, weight: Tensor) -> tuple[float, list[float]]:
    """Return the weights of a logarithmic pool (:func:`tempered`) with the largest likelihood of held-out labels.

    Every weight has a Gaussian prior with a standard deviation of a half, centred at its value without the other
    models, because a few rows that are all easy do not show which model is right.

    Args:
        log_probs: Log probabilities of the components of an equally weighted mixture, ``(S, N, C)``, at a calibrated
            temperature.
        linear: Log probabilities of the other models, ``(P, N, C)``.
        labels: ``(N,)``.
        weight: Weights of the rows, ``(N,)``, which add up to the number of independent rows.

    Returns:
        The weight of the mixture, in [0.05, 2], and those of the other models, in [0, 2].
    """

    def loss(point: Floats) -> tuple[float, Floats]:
        value = torch.tensor(point, requires_grad=True)
        pooled = tempered(log_probs, 1.0 / value[0], torch.tensordot(value[1:], linear, 1))
        density = pooled.gather(2, labels.expand(len(pooled), -1)[..., None])[..., 0].logsumexp(0)
        total = 2.0 * ((value[0] - 1.0) ** 2 + value[1:].square().sum()) - weight @ density
        total.backward()  # type: ignore[no-untyped-call]
        assert value.grad is not None
        return float(total.detach()), value.grad.numpy()

    start = [1.0 - 0.2 * len(linear)] + [0.2] * len(linear)
    bounds = [(0.05, 2.0)] + [(0.0, 2.0)] * len(linear)
    weights = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return float(weights[0]), weights[1:].tolist()


def tempered(log_probs: Tensor, value: float | Tensor, beside: Tensor | None = None) -> Tensor:
    """Return log probabilities at a temperature, plus those of other models if there are any, normalised again.

    Args:
        log_probs: ``(S, N, C)``.
        value: The temperature.
        beside: Weighted sum of the log probabilities of other models, ``(N, C)``. The result is then a logarithmic pool
            of each component with these models.
    """
    if beside is None:
        return log_probs if isinstance(value, float) and value == 1.0 else (log_probs / value).log_softmax(-1)
    return (log_probs / value + beside).log_softmax(-1)
