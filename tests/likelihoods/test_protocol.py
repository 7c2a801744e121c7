"""What stands in for what a likelihood does not define, and the errors where nothing does."""

import pytest
import torch
from torch import distributions

import bayesadam as ba
from bayesadam.likelihoods import Likelihood
from likelihoods.models import F64, ByDistribution, ByElements, Exponential, Neighbours, close, draw

ALL = [Exponential, ByElements, ByDistribution]


def data(*shape):
    return draw(*shape), draw(*shape, seed=1).exp()


@pytest.mark.parametrize("make", ALL)
class TestOneMethodSuffices:
    @pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3), (4, 2, 3)])
    def test_density(self, make, shape):
        z, y = data(*shape)
        terms = distributions.Exponential(z.exp()).log_prob(y)
        expected = terms if len(shape) == 1 else terms.sum(-1)
        close(make().log_prob(z, y), expected)
        close(make()(z, y), -expected.mean())
        close(make().log_prob(z + torch.zeros(5, *shape, **F64), y), expected.expand(5, *expected.shape))

    def test_score(self, make):
        z, y = data(6, 2)
        close(make().score(z, y), 1 - y * z.exp())
        with torch.no_grad():
            close(make().score(z.requires_grad_(), y), 1 - y * z.detach().exp())

    def test_curvature_at_the_targets(self, make):
        z, y = data(6, 2)
        factor = make().fisher_factor(z, y)
        assert factor.shape == (6, 1, 2, 2)
        assert not factor.requires_grad
        close(factor @ factor.mT, torch.diag_embed(y * z.exp()).unsqueeze(1))
        z, y = data(4, 3, 2)  # 12 data points, 3 in each example
        factor = make().fisher_factor(z, y)
        close(factor @ factor.mT, torch.diag_embed(y * z.exp()))
        z, y = data(6)
        close(make().fisher_factor(z, y), (0.5 * z).exp().mul(y.sqrt()).view(6, 1, 1, 1))

    def test_expectations_by_quadrature(self, make):
        z, y = data(6, 1)
        variance = draw(6, 1, seed=2).square()
        expected = (z - y * (z + 0.5 * variance).exp()).sum(-1)
        close(make().expected_log_density(z, variance, y), expected, rtol=1e-8, atol=1e-8)
        found = make().log_expected_density(z, variance, y)
        nodes = z + variance.sqrt() * torch.randn(1, 400_000, generator=torch.Generator().manual_seed(3), **F64)
        densities = (nodes - y * nodes.exp()).exp()
        error = densities.std(1) / densities.mean(1) / 400_000**0.5
        assert ((found - densities.mean(1).log()).abs() < 4 * error + 1e-9).all()


def test_no_variance_is_the_mean():
    z, y = data(5, 1)
    zero = torch.zeros(5, 1, **F64, requires_grad=True)
    for name in ("expected_log_density", "log_expected_density"):
        found = getattr(Exponential(), name)(z, zero, y)
        close(found.detach(), Exponential().log_prob(z, y))
        (gradient,) = torch.autograd.grad(found.sum(), zero)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["expected_log_density", "log_expected_density"])
def test_gradients_of_expectations(name):
    z, y = data(4, 2)
    for likelihood in (ByElements(), ba.likelihoods.Poisson(), ba.likelihoods.Gamma(2.0).double()):
        target = y.ceil()
        leaves = z.clone().requires_grad_(), (0.1 + draw(4, 2, seed=2).square()).requires_grad_()
        assert torch.autograd.gradcheck(lambda m, v: getattr(likelihood, name)(m, v, target).sum(), leaves)  # noqa: B023


class TestCurvatureOfOutputsThatBelongTogether:
    def test_is_the_hessian_without_its_negative_eigenvalues(self):
        z, y = 2 * draw(20, 2), draw(20, 2, seed=1)
        factor = Neighbours().fisher_factor(z, y)
        negative = 0
        for row in range(20):
            hessian = torch.func.hessian(lambda o: -Neighbours().log_density(o, y[row]))(z[row])  # noqa: B023
            values, vectors = torch.linalg.eigh(hessian)
            negative += int((values < -1e-3).sum())
            expected = vectors @ torch.diag(values.clamp_min(0)) @ vectors.T
            close(factor[row, 0] @ factor[row, 0].T, expected, rtol=1e-9, atol=1e-9)
        assert negative > 5


class TestDistribution:
    """A user's, from which everything else follows."""

    def test_moments_and_distribution_function(self):
        z, y = data(6, 2)
        given = distributions.Exponential(z.exp())
        close(ByDistribution().moments(z)[0], given.mean)
        close(ByDistribution().moments(z)[1], given.variance)
        close(ByDistribution().cdf(z, y), given.cdf(y))

    def test_draws(self):
        z = draw(3)
        draws = ByDistribution().sample(z.expand(100_000, 3), seed=4)
        error = (draws.mean(0) - (-z).exp()) / ((-z).exp() / 100_000**0.5)
        assert error.abs().max() < 4

    def test_outputs_together(self):
        class Together(Likelihood):
            def distribution(self, output):
                return distributions.MultivariateNormal(output, torch.eye(2, **F64) + 0.5)

        z, y = data(6, 2)
        expected = distributions.MultivariateNormal(z, torch.eye(2, **F64) + 0.5).log_prob(y)
        close(Together().log_prob(z, y), expected)
        precision = torch.linalg.inv(torch.eye(2, **F64) + 0.5)
        factor = Together().fisher_factor(z, y)
        close(factor @ factor.mT, precision.expand(6, 1, 2, 2))


class Sampled(Exponential):
    """Also draws."""

    def sample(self, output, *, seed=0):
        uniform = torch.rand(output.shape, generator=torch.Generator().manual_seed(seed), **F64)
        return -uniform.log() / output.exp()


def test_moments_by_draws():
    z = draw(50)
    mean, variance = Sampled().moments(z)
    errors = (mean * z.exp() - 1) * 1024**0.5  # of standard exponentials, whose variance is 1 and fourth moment 9
    assert errors.abs().max() < 4.5
    assert abs(errors.std() - 1) < 0.3
    assert ((variance * (2 * z).exp() - 1) * (1024 / 8) ** 0.5).abs().max() < 6
