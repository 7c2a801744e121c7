"""The objectives against slow loops of the papers' formulae, integrals and samples; the loss and what it refuses."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.moments import Moments, expected_log_likelihood, log_predictive
from moments.references import F64, close, draw, log_prob_by_recursion, spread

LOG_2PI = math.log(2.0 * math.pi)


def normal(x, mean, variance):
    return -0.5 * (LOG_2PI + math.log(variance) + (x - mean) ** 2 / variance)


def outputs(*shape, seed=0):
    return Moments(draw(*shape, seed=seed), 0.05 + spread(*shape, seed=seed))


GRID = [0.08 * step for step in range(-150, 151)]
MASS = [0.08 * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) for z in GRID]


def over_gaussian(function, mean, variance):
    """``E f(z)`` for ``z ~ N(mean, variance)`` by the trapezoidal rule, which has all digits for analytic functions."""
    std = math.sqrt(variance)
    return float(sum(mass * function(mean + std * z) for z, mass in zip(GRID, MASS, strict=True)))


PRECISIONS = [0.5, 2.0, 9.0]
LABELS = (draw(5, 3, seed=4) > 0).double()


def logit_density(k, z, t):
    return -t * np.logaddexp(0.0, -z) - (1.0 - t) * np.logaddexp(0.0, z)


#: Likelihood, log density by number of the output, output and target, and targets.
BY_ELEMENTS = {
    "gaussian": (ba.Gaussian(4.0), lambda k, z, t: normal(t, z, 0.25), draw(5, 3, seed=9)),
    "own precisions": (ba.Gaussian(PRECISIONS), lambda k, z, t: normal(t, z, 1 / PRECISIONS[k]), draw(5, 3, seed=9)),
    "learned": (ba.Gaussian(0.7, learned=True), lambda k, z, t: normal(t, z, 1 / 0.7), draw(5, 3, seed=9)),
    "labels": (ba.Bernoulli(), logit_density, LABELS),
    "soft labels": (ba.Bernoulli(), logit_density, 0.3 + 0.4 * LABELS),
}


@pytest.mark.parametrize("scale", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("name", BY_ELEMENTS)
def test_against_integrals(name, scale):
    likelihood, density, y = BY_ELEMENTS[name]
    output = Moments(2.0 * draw(5, 3), scale * (0.05 + spread(5, 3)))
    expected, predictive = torch.zeros(5, **F64), torch.zeros(5, **F64)
    for n in range(5):
        for k in range(3):
            m, v, t = (part[n, k].item() for part in (output.mean, output.variance, y))
            expected[n] += over_gaussian(lambda z: density(k, z, t), m, v)  # noqa: B023
            predictive[n] += math.log(over_gaussian(lambda z: math.exp(density(k, z, t)), m, v))  # noqa: B023
    # the precision's logarithm is kept in float32
    close(expected_log_likelihood(likelihood, output, y), expected, rtol=1e-6, atol=1e-6)
    close(log_predictive(likelihood, output, y), predictive, rtol=1e-5, atol=1e-5)


class TestGaussianNoise:
    def test_one_output_and_one_target_each(self):
        """Targets ``(N,)`` are data points; no variance is none."""
        output, y, likelihood = outputs(5), draw(5, seed=9), ba.Gaussian(1.0)
        for function in (expected_log_likelihood, log_predictive):
            assert function(likelihood, output, y).shape == (5,)
            certain = function(likelihood, Moments(output.mean), y)
            close(certain, torch.tensor([normal(t, m, 1.0) for t, m in zip(y, output.mean, strict=True)], **F64))

    def test_covariance(self):
        loadings, diagonal = draw(6, 3, seed=1), spread(3, seed=2)
        covariance = torch.diag(diagonal) + sum(torch.outer(u, u) for u in loadings)
        mean, y = draw(4, 3), draw(4, 3, seed=3)
        output = Moments(mean, covariance.diagonal().expand(4, 3), covariance.expand(4, 3, 3))
        ours = log_predictive(ba.Gaussian(torch.tensor([4.0, 1.0, 0.25])), output, y)
        noise = torch.tensor([0.25, 1.0, 4.0], **F64)
        theirs = torch.stack([log_prob_by_recursion(row, loadings, diagonal + noise) for row in y - mean])
        close(ours, theirs, rtol=1e-6, atol=1e-6)
        independent = log_predictive(ba.Gaussian(1.0), Moments(output.mean, output.variance), y)
        assert (ours - independent).abs().max() > 0.1


def test_noise_that_the_network_gives():
    likelihood = ba.HeteroscedasticGaussian()
    output, y = outputs(2, 4), draw(2, 2, seed=9)
    ours = expected_log_likelihood(likelihood, output, y)
    predictive = log_predictive(likelihood, output, y)
    for n in range(2):
        expected = density = 0.0
        for k in range(2):
            (m, log_noise), (v, wobble) = (
                (part[n, k].item(), part[n, k + 2].item()) for part in (output.mean, output.variance)
            )
            t = y[n, k].item()

            def given_noise(s, m=m, v=v, t=t):
                return over_gaussian(lambda z: normal(t, z, math.exp(s)), m, v)

            expected += over_gaussian(given_noise, log_noise, wobble)
            noise = over_gaussian(math.exp, log_noise, wobble)
            density += normal(t, m, v + noise)
        assert ours[n].item() == pytest.approx(expected, rel=1e-8)
        assert predictive[n].item() == pytest.approx(density, rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variance", [0.0, 1e-3, 1.0, 1e6])
def test_two_classes_at_extremes(variance, dtype):
    """Probabilities that are 0 in floating point have a logarithm, and a gradient, nonetheless."""
    mean = torch.tensor([-1e4, -800.0, -200.0, -40.0, 40.0, 200.0, 800.0, 1e4], dtype=dtype).requires_grad_()
    width = torch.full((8,), variance, dtype=dtype, requires_grad=True)
    for label in (0.0, 1.0):
        y = torch.full((8,), label, dtype=dtype)
        for function in (expected_log_likelihood, log_predictive):
            value = function(ba.Bernoulli(), Moments(mean, width), y)
            assert value.isfinite().all()
            assert (value <= 0.0).all()
            for slope in torch.autograd.grad(value.sum(), (mean, width)):
                assert slope.isfinite().all()
            if variance == 0.0:
                truth = torch.nn.functional.logsigmoid(mean.detach() if label else -mean.detach())
                close(value.detach(), truth, rtol=1e-6, atol=1e-12)
        below = expected_log_likelihood(ba.Bernoulli(), Moments(mean, width), y)
        assert (log_predictive(ba.Bernoulli(), Moments(mean, width), y) >= below).all()


class TestLoss:
    def network(self, **options):
        torch.manual_seed(0)
        return ba.fawn(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double(), **options)

    @pytest.mark.parametrize("covariance", [False, True])
    def test_it_is_the_mean_of_the_fit_and_the_divergence_per_datum(self, covariance):
        net, x, y = self.network(covariance=covariance), draw(6, 3), draw(6, 2, seed=1)
        likelihood = ba.Gaussian(2.0)
        kl = net.kl_divergence()
        for objective, function in (("vi", expected_log_likelihood), ("ropd", log_predictive)):
            fit = function(likelihood, net(x), y).mean()
            for options, scale in (
                ({}, 1.0),
                ({"kl_weight": 0.3}, 0.3),
                ({"temperature": 0.1}, 0.1),
                ({"kl_weight": 4.0, "temperature": 0.5}, 2.0),
                ({"kl_weight": 0.0}, 0.0),
                ({"temperature": 0.0}, 0.0),
            ):
                loss = net.loss(x, y, likelihood=likelihood, num_data=50, objective=objective, **options)
                assert loss.shape == ()
                close(loss, scale * kl / 50 - fit)
        loss = net.loss(x, y, likelihood=likelihood, num_data=50)
        assert torch.equal(loss, net.loss(x, y, likelihood=likelihood, num_data=50, objective="ropd"))

    @pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
    def test_is_compiled_as_a_whole(self):
        net, x, y = self.network().float(), draw(6, 3).float(), draw(6, 2, seed=1).float()
        arguments = {"likelihood": ba.Gaussian(2.0), "num_data": 50}
        eager = net.loss(x, y, **arguments)
        slopes = torch.autograd.grad(eager, list(net.parameters()))
        loss = torch.compile(net.loss, fullgraph=True, backend="eager")(x, y, **arguments)
        close(loss, eager, rtol=1e-5, atol=1e-5)
        close(torch.autograd.grad(loss, list(net.parameters())), slopes, rtol=1e-4, atol=1e-5)

    def test_learned_noise_has_a_gradient(self):
        net, likelihood = self.network(), ba.Gaussian(2.0, learned=True)
        for objective in ("vi", "ropd"):
            likelihood.zero_grad()
            net.loss(draw(6, 3), draw(6, 2), likelihood=likelihood, num_data=6, objective=objective).backward()
            assert likelihood.log_noise_precision.grad.abs() > 0.0
