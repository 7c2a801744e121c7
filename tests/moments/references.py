"""Slow loops in float64 that know nothing of the library, and bounds for samples."""

import math

import numpy as np
import torch

from posterior.kinds import F64, draw


def spread(*shape, seed=0, dtype=torch.float64):
    """Variances between 0 and about 2."""
    return (0.3 * draw(*shape, seed=seed + 1000).square()).to(dtype)


def close(ours, theirs, rtol=1e-11, atol=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def linear_loop(x, u, w, v, b=None, c=None):
    """Mean and variance of a linear layer's outputs, ``None`` being zeros."""
    u, v = (torch.zeros_like(a) if z is None else z for a, z in ((x, u), (w, v)))
    rows, spreads = x.reshape(-1, x.shape[-1]).tolist(), u.reshape(-1, x.shape[-1]).tolist()
    w, v = w.tolist(), v.tolist()
    means, variances = [], []
    for row, uncertain in zip(rows, spreads, strict=True):
        for k in range(len(w)):
            mean = 0.0 if b is None else b[k].item()
            variance = 0.0 if c is None else c[k].item()
            for j in range(len(row)):
                mean += row[j] * w[k][j]
                variance += row[j] ** 2 * v[k][j] + uncertain[j] * w[k][j] ** 2 + uncertain[j] * v[k][j]
            means.append(mean)
            variances.append(variance)
    shape = (*x.shape[:-1], len(w))
    return torch.tensor(means, **F64).view(shape), torch.tensor(variances, **F64).view(shape)


NODES, WEIGHTS = np.polynomial.legendre.leggauss(120)


def rectified(mean, variance):
    """Mean and variance of ``max(z, 0)`` for ``z ~ N(mean, variance)`` by Gauss-Legendre quadrature of both sides."""
    if variance == 0.0:
        return max(mean, 0.0), 0.0
    std = math.sqrt(variance)
    low, high = max(0.0, mean - 12.0 * std), mean + 12.0 * std
    if high <= 0.0:
        return 0.0, 0.0
    z = 0.5 * (high + low) + 0.5 * (high - low) * NODES
    density = np.exp(-0.5 * ((z - mean) / std) ** 2) / (std * math.sqrt(2.0 * math.pi))
    mass = 0.5 * (high - low) * WEIGHTS * density
    below = max(0.0, 1.0 - mass.sum())
    first = float((mass * z).sum())
    return first, float((mass * (z - first) ** 2).sum() + below * first**2)


def one_hidden_layer(x, first, second):
    """Mean ``(N, K)`` and covariance ``(N, K, K)`` of ``W2 relu(W1 x + b1) + b2``, exactly.

    With a fixed input, hidden units are Gaussian and independent of each other. Both layers are given as
    ``(weight mean, weight variance, bias mean, bias variance)``.
    """
    hidden = [[rectified(m, v) for m, v in zip(*row, strict=True)] for row in zip(*pairs(x, first), strict=True)]
    w, v, b, c = (tensor.tolist() for tensor in second)
    outputs = range(len(w))
    mean, covariance = torch.zeros(len(hidden), len(w), **F64), torch.zeros(len(hidden), len(w), len(w), **F64)
    for n, units in enumerate(hidden):
        for k in outputs:
            mean[n, k] = b[k] + sum(units[j][0] * w[k][j] for j in range(len(units)))
            for other in outputs:
                covariance[n, k, other] = sum(units[j][1] * w[k][j] * w[other][j] for j in range(len(units)))
            covariance[n, k, k] += c[k] + sum(v[k][j] * (e**2 + s) for j, (e, s) in enumerate(units))
    return mean, covariance


def pairs(x, layer):
    mean, variance = linear_loop(x, None, *layer)
    return mean.tolist(), variance.tolist()


def log_prob_by_recursion(residual, loadings, diagonal):
    """``log N(residual | 0, diag(diagonal) + sum_j u_j u_j')`` by Sherman and Morrison's formula, a unit at a time.

    The recursion of Bayer et al. 2015, section 3.1.1, eqs. 14-15.

    Args:
        residual: ``(K,)``.
        loadings: ``u_j = sqrt(V[h_j]) m_j``, ``(H, K)``.
        diagonal: ``(K,)``.
    """
    inverse, log_det = torch.diag(1.0 / diagonal), diagonal.log().sum()
    for u in loadings:
        moved = inverse @ u
        factor = 1.0 + u @ moved
        inverse = inverse - torch.outer(moved, moved) / factor
        log_det = log_det + factor.log()
    return -0.5 * (residual @ inverse @ residual + log_det + len(residual) * math.log(2.0 * math.pi))
