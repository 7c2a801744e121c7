"""Likelihoods at a temperature: ``p^(1 / T)``, normalised, and what follows from it in every capability."""

import copy
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import distributions

import bayesadam as ba
from bayesadam.likelihoods import RegressionLikelihood, TemperedClassification, TemperedRegression
from likelihoods.models import F64, close, draw

SHAPES = {"categorical": (6, 4), "tokens": (3, 5, 4), "bernoulli": (6,), "labels": (6, 3)}
T = 2.5


def classes(name):
    """A likelihood, logits, and targets."""
    z = 3 * draw(*SHAPES[name])
    if name in ("categorical", "tokens"):
        return ba.Categorical(), z, torch.randint(4, z.shape[:-1], generator=torch.Generator().manual_seed(1))
    return ba.Bernoulli(), z, (draw(*SHAPES[name], seed=1) > 0).double()


def of_classes(likelihood):
    """At the temperature, in all digits."""
    tempered = likelihood.tempered(T).double()
    tempered.log_temperature.copy_(torch.tensor(T, **F64).log())
    return tempered


@pytest.mark.parametrize("name", SHAPES)
class TestClasses:
    def test_is_the_power_of_the_probabilities_and_has_tempered_outputs(self, name):
        likelihood, z, y = classes(name)
        tempered, cold, variance = of_classes(likelihood), z / T, draw(*SHAPES[name], seed=3).square()
        power = likelihood.log_probs(z).exp() ** (1 / T)
        close(tempered.log_probs(z).exp(), power / power.sum(-1, keepdim=True))
        close(tempered.log_prob(z, y), likelihood.log_prob(cold, y))
        close(tempered(z, y), likelihood(cold, y))
        for capability in ("expected_log_density", "log_expected_density"):
            expected = getattr(likelihood, capability)(cold, variance / T**2, y)
            close(getattr(tempered, capability)(z, variance, y), expected)
        assert torch.equal(tempered.sample(z, seed=3), likelihood.sample(cold, seed=3))
        close(tempered.distribution(z).probs, likelihood.distribution(cold).probs)
        if isinstance(likelihood, ba.Bernoulli):
            close(tempered.moments(z)[0], cold.sigmoid())

    def test_derivatives(self, name):
        likelihood, z, y = classes(name)
        tempered, leaf = of_classes(likelihood), z.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(tempered.log_prob(leaf, y).sum(), leaf)
        close(tempered.score(z, y), gradient)
        factor = tempered.fisher_factor(z, y)
        found = factor @ factor.mT
        plain = likelihood.fisher_factor(z / T, y)
        close(found, plain @ plain.mT / T**2)
        hessian = torch.func.hessian(lambda o: -tempered.log_density(o, y).sum())(z)
        blocks = torch.block_diag(*found.flatten(0, 1))
        close(blocks, hessian.reshape(z.numel(), z.numel()))

    def test_of_its_own(self, name):
        """It temperatures multiply, it says what it can as its base does, and checks the same."""
        likelihood, z, y = classes(name)
        twice = likelihood.tempered(2.0).tempered(3.0)
        assert twice.base is likelihood
        assert twice.temperature.item() == pytest.approx(6.0)
        for capability in ("log_density", "element_log_density", "log_probs", "cdf", "mean_and_log_variance"):
            assert twice.defines(capability) == likelihood.defines(capability)
        with pytest.raises(ValueError, match="^target must be "):
            twice.log_prob(z, y + 9)


def test_predictions_by_every_method_and_link():
    """Of Gaussian logits with the probit link, the variance is tempered too."""
    model, x = torch.nn.Linear(3, 4).double(), draw(5, 3)
    mean = {name: p.detach() for name, p in model.named_parameters()}
    variance = {"weight": torch.full((4, 3), 0.3, **F64), "bias": torch.zeros(4, **F64)}
    q = ba.DiagonalGaussian(mean, variance)
    tempered = of_classes(ba.Categorical())
    halved = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in halved.parameters():
            parameter.div_(T)
    narrow = ba.DiagonalGaussian({n: m / T for n, m in q.mean.items()}, {n: v / T**2 for n, v in q.variance.items()})
    for options in (
        {"method": "mean"},
        {"method": "monte_carlo"},
        {"method": "linearized"},
        {"method": "linearized", "link": "probit"},
        {"method": "moments", "link": "probit"},
    ):
        found = ba.predict(model, q, x, likelihood=tempered, **options)
        expected = ba.predict(halved, narrow, x, likelihood=ba.Categorical(), **options)
        close(found.probs, expected.probs, rtol=1e-6, atol=1e-6)


def test_a_temperature_is_saved_with_the_module():
    likelihood = ba.Categorical().tempered(0.5)
    other = ba.Categorical().tempered(1.0)
    other.load_state_dict(likelihood.state_dict())
    assert other.temperature.item() == pytest.approx(0.5)
    assert isinstance(likelihood, TemperedClassification)


def test_noise_of_one_number_or_of_several():
    for likelihood in (ba.Gaussian(4.0), ba.Gaussian(torch.tensor([1.0, 8.0]), learned=True)):
        tempered = likelihood.tempered(T)
        assert isinstance(tempered, ba.Gaussian)
        close(tempered.noise_precision, likelihood.noise_precision / T, rtol=1e-6, atol=0.0)
        assert not torch.equal(tempered.noise_precision, likelihood.noise_precision)


def test_noise_that_the_network_gives():
    z, y = draw(6, 4), draw(6, 2, seed=1)
    tempered = ba.HeteroscedasticGaussian().tempered(T).double()
    tempered.log_temperature.copy_(torch.tensor(T, **F64).log())
    mean, log_variance = z.chunk(2, -1)
    given = distributions.Normal(mean, (T * log_variance.exp()).sqrt())
    close(tempered.log_prob(z, y), given.log_prob(y).sum(-1))
    close(tempered.moments(z)[1], given.variance)
    spread = draw(6, 4, seed=2).square()
    plain = ba.HeteroscedasticGaussian().under_gaussian(z, spread)
    for a, b in zip(tempered.under_gaussian(z, spread), plain, strict=True):
        close(a, b + math.log(T) * (b is plain[2]))
    assert isinstance(tempered, TemperedRegression)
    assert tempered.tempered(2.0).temperature.item() == pytest.approx(2 * T)
    assert tempered.tempered(2.0).base is tempered.base
    assert tempered.outputs_per_target == 2


class Bent(RegressionLikelihood):
    """Mean and log variance are not linear in the outputs, and the mean depends on both of them."""

    outputs_per_target = 2

    def mean_and_log_variance(self, output):
        first, second = output.chunk(2, -1)
        return (first + 0.3 * second).tanh(), torch.nn.functional.softplus(second)

    def expected_log_density(self, mean, variance, target):
        return expected(self, mean, variance, target)


def expected(likelihood, mean, variance, target):
    """Of data points with one target, by quadrature over both outputs."""
    x, w = (torch.from_numpy(values) for values in np.polynomial.hermite_e.hermegauss(80))
    grid = torch.cartesian_prod(x, x)[:, None] * variance.sqrt() + mean
    return likelihood.log_prob(grid, target).mT @ torch.outer(w, w).flatten() / w.sum() ** 2


@pytest.mark.parametrize("base", [ba.HeteroscedasticGaussian(), Bent()])
@pytest.mark.parametrize("temperature", [1.0, T, 0.3])
def test_information_and_expected_density_of_noise_that_the_network_gives(base, temperature):
    """The information is the covariance of the score over targets."""
    tempered = base.tempered(temperature).double()
    tempered.log_temperature.copy_(torch.tensor(temperature, **F64).log())
    z, y, variance = draw(5, 2), draw(5, 1, seed=1), draw(5, 2, seed=2).square()
    x, w = (torch.from_numpy(values) for values in np.polynomial.hermite_e.hermegauss(20))
    mean, noise = tempered.moments(z)
    scores = torch.stack([tempered.score(z, mean + noise.sqrt() * point) for point in x])
    factor = tempered.fisher_factor(z, y).squeeze(1)
    close(factor @ factor.mT, torch.einsum("k,kni,knj->nij", w / w.sum(), scores, scores))
    found = tempered.expected_log_density(z, variance, y)
    close(found, expected(tempered, z, variance, y))
    if temperature == 1.0:
        close(found, base.expected_log_density(z, variance, y))


@pytest.mark.parametrize("seed", ["0", "3"])
def test_wrappers_are_made_whatever_the_order_of_sets(seed):
    """Python orders sets of words by a seed of the process."""
    made = "from bayesadam.likelihoods import Gaussian, TemperedRegression; TemperedRegression(Gaussian(), 2.0)"
    subprocess.run([sys.executable, "-c", made], env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
