"""Log expected densities of likelihoods much narrower or wider than the Gaussian of the output."""

import math

import numpy as np
import pytest
import torch

import bayesadam as ba
from bayesadam.likelihoods.quadrature import log_expectation

F64 = {"dtype": torch.float64}
NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)


def exact(likelihood, mean, variance, target, peak):
    """Value and derivatives by mean and variance, by many pieces that get shorter towards the peak of the density."""
    std = math.sqrt(variance)
    spot = (peak - mean) / std
    ends = np.unique(np.append(spot + np.sinh(np.linspace(-20, 20, 4001)) * 1e-7, np.linspace(-12, 12, 2001)))
    ends = torch.tensor(ends[(ends >= min(spot, 0) - 12) & (ends <= max(spot, 0) + 12)])
    half = 0.5 * ends.diff()
    u = (ends[:-1] + half) + torch.tensor(NODES)[:, None] * half
    density = likelihood.element_log_density(mean + std * u, torch.tensor(target, **F64))
    logs = density - 0.5 * u.square() - 0.5 * math.log(2 * math.pi) + (torch.tensor(WEIGHTS)[:, None] * half).log()
    total = logs.logsumexp((0, 1))
    weights = (logs - total).exp()
    first, second = (weights * u).sum(), (weights * u.square()).sum()
    return total, first / std, (second - 1.0) / (2.0 * variance)


CASES = [
    (ba.likelihoods.Poisson(), 100.0, 4.6, 1.0, 1e-6),
    (ba.likelihoods.Poisson(), 1e4, 9.0, 1.0, 1e-6),
    (ba.likelihoods.Poisson(), 1e7, 9.0, 4.0, 1e-6),
    (ba.likelihoods.NegativeBinomial(0.01), 100.0, 4.6, 1.0, 1e-6),
    (ba.likelihoods.Gamma(100.0), 1.0, 0.1, 1.0, 1e-6),
    (ba.likelihoods.StudentT(4.0, scale=0.1), 0.0, 0.15, 1.0, 1e-6),
    (ba.likelihoods.StudentT(4.0, scale=0.01), 8.0, 0.15, 1.0, 2e-3),
    (ba.likelihoods.StudentT(1.0, scale=0.01), 40.0, 0.15, 1.0, 1e-6),
    (ba.likelihoods.StudentT(4.0, scale=3.0), 1.0, 0.15, 1.0, 1e-9),
]


@pytest.mark.parametrize(("likelihood", "target", "mean", "variance", "tolerance"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_derivatives(likelihood, target, mean, variance, tolerance, dtype):
    leaves = [torch.tensor([value], dtype=dtype, requires_grad=True) for value in (mean, variance)]
    found = likelihood.log_expected_density(*leaves, torch.tensor([target], dtype=dtype))
    slopes = torch.autograd.grad(found.sum(), leaves)
    mean, variance = (leaf.item() for leaf in leaves)
    peak = target if isinstance(likelihood, ba.likelihoods.StudentT) else math.log(target)
    value, *derivatives = exact(likelihood, mean, variance, target, peak)
    tolerance = max(tolerance, 1e-4 * (dtype is torch.float32))
    torch.testing.assert_close(found[0].double(), value, rtol=tolerance, atol=tolerance)
    for slope, derivative in zip(slopes, derivatives, strict=True):
        torch.testing.assert_close(slope[0].double(), derivative, rtol=10 * tolerance, atol=10 * tolerance)


def test_slopes_do_not_oscillate():
    mean = torch.linspace(3.0, 6.0, 400, **F64).requires_grad_()
    target = torch.full_like(mean, 100.0)
    found = ba.likelihoods.Poisson().log_expected_density(mean, torch.ones_like(mean), target)
    (slope,) = torch.autograd.grad(found.sum(), mean)
    assert (slope.diff() < 0).all()  # the integrand is log-concave, and so is its integral


def test_variances_of_zero_and_of_one_row_of_many():
    """Each element has nodes of its own, and half precision is computed in float32."""
    mean, variance = torch.tensor([0.5, 0.5], **F64), torch.tensor([0.0, 2.0], **F64).requires_grad_()
    found = log_expectation(lambda z: -0.5 * z.square(), mean, variance)
    (slope,) = torch.autograd.grad(found.sum(), variance)
    expected = torch.tensor([-0.125, -0.125 / 3.0 - 0.5 * math.log(3.0)], **F64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(slope, torch.tensor([0.0, 0.125 / 9.0 - 0.5 / 3.0], **F64), rtol=1e-10, atol=1e-12)
    half = log_expectation(lambda z: -0.5 * z.square(), mean.bfloat16(), variance.bfloat16())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), expected, rtol=1e-5, atol=1e-6)
