"""Expectations under independent Gaussian logits that objectives and predictions for classes need."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesadam.functional.moments.logistic import expected_softplus
from bayesadam.functional.moments.rectifier import elementwise

_STEPS = 9
_INNER_STEPS = 5


def expected_log_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """``E[log sig(z)]`` for ``z ~ N(mean, variance)``, element-wise: ``-E[log(1 + exp(-z))]``.

    As accurate as :func:`~bayesadam.functional.moments.logistic.expected_softplus`.
    """
    return -expected_softplus(-mean, variance)


def expected_log_softmax(mean: Tensor, variance: Tensor, index: Tensor) -> Tensor:
    """A lower bound of ``E[log softmax(z)_index]`` for independent ``z_k ~ N(mean_k, variance_k)``.

    ``E[logsumexp(z)]`` is bounded from above by the tilted bound of Knowles and Minka (2011, section 4.2)::

        1/2 sum_k a_k^2 variance_k + log sum_k exp(mean_k + (1 - 2 a_k) variance_k / 2)

    which holds for any ``a``, is convex in it, and least at ``a = softmax(mean + (1 - 2 a) variance / 2)``. The
    iteration of that equation diverges at large variances. Instead, with the logarithm of the sum, ``L``, given, each
    ``a_k`` is the solution of an equation of its own (Lambert's W), and ``L`` is where they sum to 1: Newton's method
    in one unknown. Jensen's inequality, ``a = 0``, is kept where rounding makes it better. Gradients hold ``a`` fixed,
    which is exact at its optimum.

    Measured by 1e4 samples with logits of standard deviation 2: below the expectation by 0.02 to 0.03 nats at variances
    of 1 (Jensen: 0.4 of 2 classes, 0.2 of 10), 1.1 to 1.5 at 10 and 20 to 30 at 100.
    Variances of 0 give ``log_softmax`` bit for bit.

    Args:
        mean: ``(..., K)``.
        variance: The same shape, not negative.
        index: ``(...)``, integers below ``K``.

    Returns:
        ``(...)``, in nats.

    Raises:
        ValueError: If the shapes do not fit.
    """
    if index.shape != mean.shape[:-1]:
        raise ValueError(f"index must be of shape {tuple(mean.shape[:-1])}, got {tuple(index.shape)!r}")

    def bound(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        tilt = _tilt(mean.detach().double(), variance.detach().double()).to(mean.dtype)
        move = (0.5 - tilt) * variance
        excess = move + 0.5 * (tilt.square() * variance).sum(-1, keepdim=True)
        return (mean + move).log_softmax(-1) - excess, variance

    return elementwise(bound, mean, variance)[0].gather(-1, index.unsqueeze(-1)).squeeze(-1)


def log_expected_softmax(mean: Tensor, variance: Tensor) -> Tensor:
    """Log of an approximation of ``E[softmax(z)]`` over the last axis, for independent ``z_k ~ N(mean_k, variance_k)``.

    The mean-field approximation "mf2" of Lu, Ie and Sha (2020), made to sum to 1: with the pairs' probabilities by
    MacKay's scaling, ``1 / p_k = sum_i exp((mean_i - mean_k) / sqrt(1 + pi (variance_i + variance_k) / 8))``, where the
    term ``i = k`` is 1. Two classes have the closed-form sigmoid of their difference.

    Measured by 1e5 samples at random logits, the largest error of a probability, at variances about 1 (100): of two
    classes 0.011 (0.018), of three 0.037 (0.083), of five 0.084 (0.13), of ten 0.12 (0.19). Probit scaling of each
    logit ("mf0") is off by up to 0.33 (0.70), "mf1" by 0.076 (0.17) for two classes and 0.084 (0.16) for ten.

    Takes ``K^2`` memory per row. Variances of 0 give ``log_softmax`` up to rounding.

    Args:
        mean: ``(..., K)``.
        variance: The same shape, not negative.

    Returns:
        ``(..., K)``, log probabilities in nats.

    Raises:
        ValueError: If the shapes differ.
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
