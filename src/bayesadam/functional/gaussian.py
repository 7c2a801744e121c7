"""Formulae for Gaussians: element-wise for independent weights, ``dense_...`` for weights with a full covariance.

A variance of exactly zero is a point mass: a pruned weight, or one that is not random. Its log density is taken with
respect to the counting measure (0 at its mean, minus infinity elsewhere), and it has no entropy and no divergence of
its own. Everything is computed in float64, since the results are summed over millions of weights.

A full covariance is given by its Cholesky factor ``scale_tril``, the lower triangular ``L`` with ``covariance = L L'``
and a positive diagonal; rows and columns of point masses are zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "cholesky_of_rows",
    "dense_entropy",
    "dense_kl_divergence",
    "dense_log_prob",
    "entropy",
    "kl_divergence",
    "log_prob",
]


def log_prob(value: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """``log N(value | mean, variance)``, element-wise; shapes broadcast."""
    value, mean, variance = value.double(), mean.double(), variance.double()
    point = variance == 0
    safe = torch.where(point, 1.0, variance)
    density = -0.5 * ((value - mean).square() / safe + safe.log() + math.log(2.0 * math.pi))
    mass = torch.where(value == mean, 0.0, -math.inf)
    return torch.where(point, mass, density)


def entropy(variance: Tensor) -> Tensor:
    """Differential entropy, element-wise: ``0.5 log(2 pi e variance)``; 0 for a point mass."""
    variance = variance.double()
    point = variance == 0
    return torch.where(point, 0.0, 0.5 * (torch.where(point, 1.0, variance).log() + math.log(2.0 * math.pi) + 1.0))


def kl_divergence(mean: Tensor, variance: Tensor, prior_mean: Tensor, prior_variance: Tensor) -> Tensor:
    """``KL(N(mean, variance) || N(prior_mean, prior_variance))``, element-wise.

    A point mass in the first argument counts as 0, since it is not one of the random weights. The divergence of a
    random weight from a point mass is infinite; that of two point masses is 0 if they are equal and infinite otherwise.
    """
    mean, variance = mean.double(), variance.double()
    prior_mean, prior_variance = prior_mean.double(), prior_variance.double()
    point, prior_point = variance == 0, prior_variance == 0
    safe, safe_prior = torch.where(point, 1.0, variance), torch.where(prior_point, 1.0, prior_variance)
    shift = (mean - prior_mean).square() / safe_prior
    divergence = torch.where(point, 0.0, 0.5 * (_ratio_cost(safe, safe_prior) + shift))
    far = prior_point & ~(point & (mean == prior_mean))
    return torch.where(far, math.inf, divergence)


def dense_log_prob(value: Tensor, mean: Tensor, scale_tril: Tensor) -> Tensor:
    """``log N(value | mean, L L')`` for values ``(..., D)``, a mean ``(D,)`` and a factor ``(D, D)``; the result is
    ``(...)``.
    """
    spread = scale_tril.diagonal()
    residual = value.double() - mean.double()
    far = residual.isinf() | ((spread == 0) & (residual != 0))
    columns = torch.where(far, 0.0, residual).reshape(-1, len(spread)).T
    white: Tensor = torch.linalg.solve_triangular(_solvable(scale_tril), columns, upper=False)
    log_normaliser = torch.where(spread == 0, 0.0, _solvable(scale_tril).diagonal().log() + 0.5 * math.log(2 * math.pi))
    density = -0.5 * white.square().sum(0) - log_normaliser.sum()
    return torch.where(far.any(-1), -math.inf, density.view(value.shape[:-1]))


def dense_entropy(scale_tril: Tensor) -> Tensor:
    """Differential entropy of ``N(., L L')``, 0-d."""
    return entropy(scale_tril.diagonal().square()).sum()


def dense_kl_divergence(mean: Tensor, scale: Tensor, prior_mean: Tensor, prior_scale: Tensor) -> Tensor:
    """KL divergence of two Gaussians over the same ``D`` weights, 0-d.

    Point masses count as in :func:`kl_divergence`. If weights that are random in the prior are point masses in the
    first argument, the marginal prior of the other weights is used.

    With ``W = L_prior^-1 L = I + L_prior^-1 (L - L_prior)`` the divergence is a sum of terms that are not negative, so
    there is no cancellation: the squares below the diagonal of ``W``, those of the whitened shift of the mean, and the
    terms of the element-wise formula for the squared diagonals.

    Args:
        mean: Mean, ``(D,)``.
        scale: Cholesky factor ``(D, D)``, or standard deviations ``(D,)`` of independent weights.
        prior_mean: Mean of the prior, ``(D,)``.
        prior_scale: Cholesky factor or standard deviations of the prior.
    """
    if scale.ndim == prior_scale.ndim == 1:
        return kl_divergence(mean, scale.square(), prior_mean, prior_scale.square()).sum()
    shift = mean.double() - prior_mean.double()
    spread, prior_spread = _diagonal(scale), _diagonal(prior_scale)
    point, prior_point = spread == 0, prior_spread == 0
    if (prior_point & ~(point & (shift == 0))).any():
        return torch.full_like(shift.sum(), math.inf)
    if prior_scale.ndim == 2 and (point & ~prior_point).any():
        prior_scale = cholesky_of_rows(torch.where(point.unsqueeze(1), 0.0, prior_scale))
        prior_spread = prior_scale.diagonal()
    columns = torch.cat([_matrix(scale) - _matrix(prior_scale), torch.where(point, 0.0, shift).unsqueeze(1)], 1)
    if prior_scale.ndim == 2:
        white: Tensor = torch.linalg.solve_triangular(_solvable(prior_scale), columns, upper=False)
    else:
        white = columns / torch.where(point, 1.0, prior_spread).unsqueeze(1)
    costs = _ratio_cost(spread[~point].square(), prior_spread[~point].square())
    return 0.5 * (white[:, :-1].tril(-1).square().sum() + white[:, -1].square().sum() + costs.sum())


def cholesky_of_rows(rows: Tensor) -> Tensor:
    """Cholesky factor ``(D, D)`` of ``rows @ rows.T``, for linearly independent rows ``(D, K)`` and rows of zeros.

    It uses a QR decomposition and does not form the product, so the result is as accurate as the rows at any scale.
    """
    random = rows.any(1)
    lower = torch.linalg.qr(rows[random].T, mode="r").R.T
    factor = rows.new_zeros(len(rows), len(rows))
    factor[random.unsqueeze(1) & random] = torch.where(lower.diagonal() < 0, -lower, lower).flatten()
    return factor


def _diagonal(scale: Tensor) -> Tensor:
    return scale.diagonal() if scale.ndim == 2 else scale


def _matrix(scale: Tensor) -> Tensor:
    return scale if scale.ndim == 2 else scale.diag()


def _solvable(scale_tril: Tensor) -> Tensor:
    """The factor with 1 on the diagonal for point masses."""
    point = scale_tril.diagonal() == 0
    return scale_tril + point.double().diag() if point.any() else scale_tril


def _ratio_cost(variance: Tensor, prior_variance: Tensor) -> Tensor:
    """``r - 1 - log(r)`` of the ratio ``r`` of two positive variances, finite and with a small relative error.

    Near ``r = 1``, where the terms cancel, it uses ``log(1 + x) = 2 atanh(x / (2 + x))`` as a series.
    """
    excess = (variance - prior_variance) / prior_variance
    half = excess / (2.0 + excess)
    square = half.square()
    series = torch.zeros_like(square)
    for odd in range(13, 1, -2):
        series = series * square + 1.0 / odd
    near = half * (excess - 2.0 * square * series)
    return torch.where(excess.abs() < 0.1, near, excess - (variance.log() - prior_variance.log()))
