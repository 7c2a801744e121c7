"""The objectives against slow loops of the papers' formulae, integrals and samples; the loss and what it refuses."""

import math

import numpy as np
import pytest
import torch
from scipy.special import expit
from torch import nn

import bayesadam as ba
from bayesadam.moments import Moments, expected_log_likelihood, log_predictive
from moments.references import F64, close, draw, log_prob_by_recursion, spread

LOG_2PI = math.log(2.0 * math.pi)


def normal(x, mean, variance):
    return -0.5 * (LOG_2PI + math.log(variance) + (x - mean) ** 2 / variance)


def sampled(output, count):
    return output.mean + output.variance.sqrt() * draw(count, *output.mean.shape, seed=50)


def outputs(*shape, seed=0):
    return Moments(draw(*shape, seed=seed), 0.05 + spread(*shape, seed=seed))


GRID = [0.08 * step for step in range(-150, 151)]
MASS = [0.08 * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) for z in GRID]


def over_gaussian(function, mean, variance):
    """``E f(z)`` for ``z ~ N(mean, variance)`` by the trapezoidal rule, which has all digits for analytic functions."""
    std = math.sqrt(variance)
    return float(sum(mass * function(mean + std * z) for z, mass in zip(GRID, MASS, strict=True)))


class TestGaussianNoise:
    #: One noise precision, or one per output.
    NOISE = (ba.Gaussian(4.0), ba.Gaussian(torch.tensor([0.5, 2.0, 9.0])), ba.Gaussian(0.7, learned=True))

    @pytest.mark.parametrize("likelihood", NOISE)
    def test_against_loops(self, likelihood):
        output, y = outputs(5, 3), draw(5, 3, seed=9)
        noise = (1.0 / likelihood.noise_precision.detach().double()).expand(3).tolist()
        for n in range(5):
            vi = ropd = three = 0.0
            for k in range(3):
                m, v, t = (part[n, k].item() for part in (output.mean, output.variance, y))
                vi += normal(t, m, noise[k]) - v / (2.0 * noise[k])
                ropd += normal(t, m, v + noise[k])
                # as the paper reads it: the spread is to be explained by the noise, and the residual as well
                three += normal(math.sqrt(v), 0.0, noise[k]) + normal(t - m, 0.0, noise[k])
                three += 0.5 * math.log(2.0 * math.pi * noise[k])
            tight = {"rtol": 1e-6, "atol": 1e-6}  # the precision's logarithm is kept in float32
            ours = expected_log_likelihood(likelihood, output, y)[n].item()
            assert ours == pytest.approx(vi, rel=1e-6, abs=1e-6)
            assert ours == pytest.approx(three, rel=1e-6, abs=1e-6)
            close(log_predictive(likelihood, output, y)[n], torch.tensor(ropd, **F64), **tight)

    def test_one_output_and_one_target_each(self):
        """Targets ``(N,)`` are data points; no variance is none."""
        output, y, likelihood = outputs(5), draw(5, seed=9), ba.Gaussian(1.0)
        for function in (expected_log_likelihood, log_predictive):
            assert function(likelihood, output, y).shape == (5,)
            certain = function(likelihood, Moments(output.mean), y)
            close(certain, torch.tensor([normal(t, m, 1.0) for t, m in zip(y, output.mean, strict=True)], **F64))

    def test_the_predictive_density_is_never_below_the_expected_one(self):
        output, y, likelihood = outputs(900, 2), 3.0 * draw(900, 2, seed=7), ba.Gaussian(3.0)
        gap = log_predictive(likelihood, output, y) - expected_log_likelihood(likelihood, output, y)
        assert gap.min() > 0.0
        same = Moments(output.mean, torch.zeros_like(output.mean))
        close(log_predictive(likelihood, same, y), expected_log_likelihood(likelihood, same, y))

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


class TestTwoClasses:
    @pytest.mark.parametrize("variance", [0.01, 0.5, 2.0, 30.0])
    def test_against_integrals(self, variance):
        means = [-6.0, -1.0, 0.0, 0.3, 4.0]
        output = Moments(torch.tensor(means, **F64), torch.full((5,), variance, **F64))
        for label in (0.0, 1.0, 0.3):
            y = torch.full((5,), label, **F64)
            up = [over_gaussian(lambda z: -np.logaddexp(0.0, -z), m, variance) for m in means]
            down = [over_gaussian(lambda z: -np.logaddexp(0.0, z), m, variance) for m in means]
            expected = label * torch.tensor(up, **F64) + (1.0 - label) * torch.tensor(down, **F64)
            close(expected_log_likelihood(ba.Bernoulli(), output, y), expected, rtol=1e-6, atol=1e-6)

            def density(z, label=label):
                return expit(z) ** label * expit(-z) ** (1.0 - label)

            p = torch.tensor([over_gaussian(density, m, variance) for m in means], **F64)
            close(log_predictive(ba.Bernoulli(), output, y), p.log(), rtol=1e-5, atol=1e-5)

    def test_several_labels_of_a_data_point_are_summed(self):
        output, y = outputs(5, 3), (draw(5, 3, seed=4) > 0).double()
        for function in (expected_log_likelihood, log_predictive):
            single = [
                function(ba.Bernoulli(), Moments(output.mean[:, k], output.variance[:, k]), y[:, k]) for k in range(3)
            ]
            close(function(ba.Bernoulli(), output, y), sum(single))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("variance", [0.0, 1e-3, 1.0, 1e6])
    def test_extremes(self, variance, dtype):
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


class TestClasses:
    def test_the_predictive_is_close_to_samples(self):
        output, y = outputs(20, 4), torch.arange(20) % 4
        truth = sampled(output, 50_000).softmax(-1).mean(0).gather(1, y[:, None])[:, 0]
        ours = log_predictive(ba.Categorical(), output, y)
        close(ours.exp(), truth, rtol=0.0, atol=0.03)
        certain = Moments(output.mean)
        plain = ba.Categorical().log_prob(output.mean, y)
        close(log_predictive(ba.Categorical(), certain, y), plain)
        close(expected_log_likelihood(ba.Categorical(), certain, y), plain)
        assert (plain.exp() - truth).abs().max() > 0.03  # the variance is made use of

    def test_data_points_with_several_labels(self):
        output, y = outputs(5, 3, 4), torch.arange(15).view(5, 3) % 4
        flat = Moments(output.mean.flatten(0, 1), output.variance.flatten(0, 1))
        for function in (expected_log_likelihood, log_predictive):
            close(function(ba.Categorical(), output, y).flatten(), function(ba.Categorical(), flat, y.flatten()))


FUNCTIONS = (expected_log_likelihood, log_predictive)


@pytest.mark.parametrize(
    ("likelihood", "target", "shape"),
    [
        (ba.Gaussian(2.0), draw(4, 2, seed=3), (4, 2)),
        (ba.HeteroscedasticGaussian(), draw(4, 1, seed=3), (4, 2)),
        (ba.Bernoulli(), (draw(4, 2, seed=3) > 0).double(), (4, 2)),
        (ba.Categorical(), torch.tensor([0, 1, 2, 0]), (4, 3)),
    ],
)
def test_gradients(likelihood, target, shape):
    """Against differences; with classes those of the bound are exact at its optimum."""
    plain = outputs(*shape)
    mean, variance = plain.mean.requires_grad_(), plain.variance.requires_grad_()
    for function in FUNCTIONS:
        assert torch.autograd.gradcheck(
            lambda m, v, f=function: f(likelihood, Moments(m, v), target), (mean, variance), atol=1e-5, rtol=1e-3
        )


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
        ropd, vi = (net.loss(x, y, likelihood=likelihood, num_data=50, **o) for o in ({}, {"objective": "vi"}))
        assert ropd < vi

    def test_a_covariance_of_means_with_noise_of_their_own(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)).double()
        net, x, y = ba.fawn(model, covariance=True, initial_std=0.5), draw(6, 3), draw(6, 2, seed=1)
        likelihood, out = ba.HeteroscedasticGaussian(), net(x)
        noise = (out.mean[:, 2:] + 0.5 * out.variance[:, 2:]).exp()
        total = out.covariance[:, :2, :2] + torch.diag_embed(noise)
        expected = torch.distributions.MultivariateNormal(out.mean[:, :2], total).log_prob(y)
        close(ba.moments.log_predictive(likelihood, out, y), expected)
        found = ba.predict(model, net.posterior(), x, likelihood=likelihood, method="moments").log_prob(y)
        close(found, expected.detach())

    @pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
    def test_is_compiled_as_a_whole(self):
        net, x, y = self.network().float(), draw(6, 3).float(), draw(6, 2, seed=1).float()
        arguments = {"likelihood": ba.Gaussian(2.0), "num_data": 50}
        eager = net.loss(x, y, **arguments)
        slopes = torch.autograd.grad(eager, list(net.parameters()))
        loss = torch.compile(net.loss, fullgraph=True, backend="eager")(x, y, **arguments)
        close(loss, eager, rtol=1e-5, atol=1e-5)
        for found, expected in zip(torch.autograd.grad(loss, list(net.parameters())), slopes, strict=True):
            close(found, expected, rtol=1e-4, atol=1e-5)

    def test_learned_noise_has_a_gradient(self):
        net, likelihood = self.network(), ba.Gaussian(2.0, learned=True)
        for objective in ("vi", "ropd"):
            likelihood.zero_grad()
            net.loss(draw(6, 3), draw(6, 2), likelihood=likelihood, num_data=6, objective=objective).backward()
            assert likelihood.log_noise_precision.grad.abs() > 0.0
