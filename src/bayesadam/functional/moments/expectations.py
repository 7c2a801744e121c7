"""Expectations under independent Gaussian logits, for objectives and predictions of classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesadam.functional.moments.logistic import expected_softplus
from bayesadam.functional.moments.rectifier import elementwise

_STEPS = 9
_INNER_STEPS = 5


def expected_log_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """``E[log sig(z)]`` for ``z ~ N(mean, variance)``, element-wise, computed as ``-E[log(1 + exp(-z))]``.

    It is as accurate as :func:`~bayesadam.functional.moments.logistic.expected_softplus`.
    """
    return -expected_softplus(-mean, variance)


def expected_log_softmax(mean: Tensor, variance: Tensor, index: Tensor) -> Tensor:
    """A lower bound of ``E[log softmax(z)_index]`` for independent ``z_k ~ N(mean_k, variance_k)``.

    ``E[logsumexp(z)]`` is bounded from above by the tilted bound of Knowles and Minka (2011, section 4.2)::

        1/2 sum_k a_k^2 variance_k + log sum_k exp(mean_k + (1 - 2 a_k) variance_k / 2)

    which holds for any ``a``, is convex in it, and has its minimum at ``a = softmax(mean + (1 - 2 a) variance / 2)``.
    Iterating that equation diverges at large variances. Instead, given the logarithm ``L`` of the sum, each ``a_k``
    solves a separate equation (Lambert's W), and Newton's method finds the ``L`` at which they sum to 1. Jensen's
    inequality, ``a = 0``, is used where rounding makes it better. Gradients hold ``a`` fixed, which is exact at its
    optimum.

    Measured with 1e4 samples and logits of standard deviation 2, the bound is below the expectation by 0.02 to 0.03
    nats at variances of 1 (Jensen: 0.4 for 2 classes, 0.2 for 10), 1.1 to 1.5 at 10, and 20 to 30 at 100. Variances of
    0 give ``log_softmax`` bit for bit.

    Args:
        mean: Means, ``(..., K)``.
        variance: Variances of the same shape, not negative.
        index: Class numbers ``(...)``, integers below ``K``.

    Returns:
        The bound, ``(...)``, in nats.

    Raises:
        ValueError: The shapes do not fit.
    """
    if index.shape != mean.shape[:-1]:
        raise ValueError(f"index must be of shape {tuple(mean.shape[:-1])}, got {tuple(index.shape)!r}")

    def bound(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        tilt = _tilt(mean.detach().double(), variance.detach().double()).to(mean.dtype)
        move = (0.5 - tilt) * variance
        excess = move + 0.5 * (tilt.square() * variance).sum(-1, keepdim=True)
        return (mean + move).log_softmax(-1) - excess, variance

    return elementwise(bound, mean, variance)[0].gather(-1, index.unsqueeze(-1)).squeeze(-1)


def jensen_log_softmax(mean: Tensor, variance: Tensor, index: Tensor) -> Tensor:
    """A looser and cheaper lower bound of ``E[log softmax(z)_index]`` than :func:`expected_log_softmax`.

    It is ``mean_index - logsumexp(mean + variance / 2)``, by Jensen's inequality, for ``z_k ~ N(mean_k, variance_k)``
    with any correlations (Harrison et al. 2024, Theorem 2).

    Args:
        mean: Means, ``(..., K)``.
        variance: Variances of the same shape, not negative.
        index: Class numbers ``(...)``, integers below ``K``.

    Returns:
        The bound, ``(...)``, in nats.

    Raises:
        ValueError: The shapes do not fit.
    """
    if index.shape != mean.shape[:-1]:
        raise ValueError(f"index must be of shape {tuple(mean.shape[:-1])}, got {tuple(index.shape)!r}")
    half = 0.5 * variance
    return ((mean + half).log_softmax(-1) - half).gather(-1, index.unsqueeze(-1)).squeeze(-1)


def log_expected_softmax(mean: Tensor, variance: Tensor) -> Tensor:
    """Log of an approximation of ``E[softmax(z)]`` over the last axis, for independent ``z_k ~ N(mean_k, variance_k)``.

    This is the mean-field approximation "mf2" of Lu, Ie and Sha (2020), normalised to sum to 1. With MacKay's scaling
    for each pair of classes, ``1 / p_k = sum_i exp((mean_i - mean_k) / sqrt(1 + pi (variance_i + variance_k) / 8))``,
    where the term ``i = k`` is 1. For two classes this is the closed-form sigmoid of their difference.

    Measured with 1e5 samples at random logits, the largest error of a probability at variances of about 1 (100) is
    0.011 (0.018) for two classes, 0.037 (0.083) for three, 0.084 (0.13) for five and 0.12 (0.19) for ten. Probit
    scaling of each logit ("mf0") has errors up to 0.33 (0.70), and "mf1" 0.076 (0.17) for two classes and 0.084 (0.16)
    for ten.

    It needs ``K^2`` memory per row. Variances of 0 give ``log_softmax`` up to rounding.

    Args:
        mean: Means, ``(..., K)``.
        variance: Variances of the same shape, not negative.

    Returns:
        Log probabilities ``(..., K)``, in nats.

    Raises:
        ValueError: The shapes differ.
    """

    def moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        width = (1.0 + math.pi / 8.0 * (variance.unsqueeze(-2) + variance.unsqueeze(-1))).sqrt()
        ratios = (mean.unsqueeze(-2) - mean.unsqueeze(-1)) / width
        return (-ratios.logsumexp(-1)).log_softmax(-1), variance

    return elementwise(moments, mean, variance)[0]


def _tilt(mean: Tensor, variance: Tensor) -> Tensor:
    """The minimiser ``a`` of the tilted bound, in float64."""
    raised = mean + 0.5 * variance
    safe = variance.clamp_min(1e-30)
    # The sum of the weights is convex and falls with the level: from below Newton's method is monotone
    level = (mean - 0.5 * variance).logsumexp(-1, keepdim=True)
    for _ in range(_STEPS):
        tilt = _weights(raised - level, safe)
        fall = (tilt / (1.0 + variance * tilt)).sum(-1, keepdim=True)
        level = level + (tilt.sum(-1, keepdim=True) - 1.0) / fall
    tilt = _weights(raised - level, safe)
    square = 0.5 * (tilt.square() * variance).sum(-1, keepdim=True)
    value = square + (raised - tilt * variance).logsumexp(-1, keepdim=True)
    return torch.where(value <= raised.logsumexp(-1, keepdim=True), tilt, 0.0)


def _weights(gap: Tensor, variance: Tensor) -> Tensor:
    """The solution ``a`` of ``log(a) + variance a = gap``, by Newton steps from above in ``q = log(variance a)``."""
    offset = variance.log()
    target = gap + offset
    log_weight = torch.where(target > 0, target.clamp_min(0.0).log1p(), target)
    for _ in range(_INNER_STEPS):
        weight = log_weight.exp()
        log_weight = log_weight - (log_weight + weight - target) / (1.0 + weight)
    return (log_weight - offset).exp()
