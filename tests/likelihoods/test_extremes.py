"""Densities and distribution functions where squares overflow and sums of large numbers cancel."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats

import bayesadam as ba
from bayesadam.functional.special import betainc


class TestOutliersOfStudentsT:
    @pytest.mark.parametrize("degrees", [0.5, 4.0, 1e6])
    @pytest.mark.parametrize("error", [1e3, 1e8, 1e12, 1e20, 1e30, 1e38])
    def test_densities_in_float32(self, error, degrees):
        """Against 50 digits, with their derivatives by all parameters."""
        likelihood = ba.likelihoods.StudentT(degrees, scale=0.1, learned=True)
        output, target = torch.zeros(2, requires_grad=True), torch.tensor([error, -error])
        found = likelihood.log_prob(output, target)
        found.sum().backward()
        with mpmath.workdps(50):
            y, log_degrees, log_scale = (
                mpmath.mpf(value.item()) for value in (target[0], likelihood.log_degrees, likelihood.log_scale)
            )

            def density(log_degrees, log_scale):
                d, square = mpmath.exp(log_degrees), (y * mpmath.exp(-log_scale)) ** 2
                constant = mpmath.loggamma((d + 1) / 2) - mpmath.loggamma(d / 2) - mpmath.log(d * mpmath.pi) / 2
                return constant - log_scale - (d + 1) / 2 * mpmath.log1p(square / d)

            expected = float(density(log_degrees, log_scale))
            slopes = [float(mpmath.diff(density, (log_degrees, log_scale), order)) for order in ((1, 0), (0, 1))]
        torch.testing.assert_close(found, torch.tensor([expected] * 2), rtol=1e-5, atol=0.0)
        parameters = torch.stack([likelihood.log_degrees.grad, likelihood.log_scale.grad])
        torch.testing.assert_close(parameters, 2.0 * torch.tensor(slopes), rtol=1e-4, atol=0.0)
        score = likelihood.score(output.detach(), target)
        torch.testing.assert_close(output.grad, score, rtol=1e-5, atol=1e-44)
        white = error / math.exp(float(log_scale))
        expected = (degrees + 1.0) / (degrees / white + white) / math.exp(float(log_scale))
        torch.testing.assert_close(score, torch.tensor([expected, -expected]), rtol=1e-4, atol=1e-38)

    def test_scores_at_the_output_are_zero(self):
        assert ba.likelihoods.StudentT(4.0).score(torch.zeros(2), torch.tensor([0.0, -0.0])).tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("degrees", [4.0, 1e8])
    @pytest.mark.parametrize("value", [1e20, 1e100, 1e200, math.inf])
    def test_distribution_functions(self, value, degrees):
        likelihood, output = ba.likelihoods.StudentT(degrees, scale=0.1), torch.zeros(2, dtype=torch.float64)
        found = likelihood.cdf(output, torch.tensor([-value, value], dtype=torch.float64))
        torch.testing.assert_close(found, torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=0.0, atol=1e-60)


@pytest.mark.parametrize("dispersion", [1e-12, 1e-13, 1e-15, 1e-18, 1e-30])
def test_counts_of_almost_no_dispersion_have_the_distribution_function_of_poisson(dispersion):
    counts = np.array([0.0, 3.0, 12.0, 19.0, 20.0, 21.0, 24.0, 60.0])
    likelihood = ba.likelihoods.NegativeBinomial(dispersion)
    output = torch.full((len(counts),), 3.0, dtype=torch.float64)
    found = likelihood.cdf(output, torch.tensor(counts))
    expected = torch.tensor(stats.poisson(math.exp(3.0)).cdf(counts))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize(
    ("a", "b", "mean"), [(1e12, 25.0, 20.0), (1e12, 25.0, 40.0), (1e5, 2.0, 30.0), (1e-3, 5.0, 1e-4)]
)
def test_incomplete_beta_functions_of_parameters_of_different_sizes(a, b, mean):
    """At ``a / (a + mean)``, by 60 digits; rounding of the complement alone changes it by 1e-14."""
    a, b, complement = (torch.tensor(value, dtype=torch.float64) for value in (a, b, mean / (a + mean)))
    found = betainc(a, b, 1.0 - complement, complement)
    with mpmath.workdps(60):
        expected = mpmath.betainc(a.item(), b.item(), 0, 1 - mpmath.mpf(complement.item()), regularized=True)
    assert found.item() == pytest.approx(float(expected), rel=1e-12)


def test_incomplete_beta_functions_of_nan_take_no_more_steps(monkeypatch):
    def few(start, stop):
        yield from range(start, min(stop, 100))
        raise AssertionError("more than 100 steps")

    monkeypatch.setattr("bayesadam.functional.special.range", few, raising=False)
    found = betainc(torch.tensor([2.0, 2.0]), torch.tensor([3.0, 3.0]), torch.tensor([math.nan, 0.5]))
    assert found.isnan().tolist() == [True, False]


def test_incomplete_beta_functions_keep_their_digits():
    generator = np.random.default_rng(0)
    a, b = 10 ** generator.uniform(-3, 4, (2, 5000))
    x = generator.beta(a, b).clip(1e-300, 1 - 1e-16)
    found = betainc(*map(torch.tensor, (a, b, x)))
    torch.testing.assert_close(found, torch.tensor(special.betainc(a, b, x)), rtol=5e-10, atol=1e-200)
