"""Likelihoods derived from shipped ones: a closed form is of its class alone, and a density goes with what is of it."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.likelihoods import Likelihood, RegressionLikelihood
from bayesadam.likelihoods.base import CLOSED_FORMS, MOMENTS, OF_DISTRIBUTION
from likelihoods.models import close
from posterior.kinds import F64, draw

WEIGHTS = torch.tensor([1.0, 5.0, 0.2], **F64)


class Weighted(ba.Categorical):
    """Weights of the classes, by the density of a data point."""

    def log_density(self, output, target):
        return WEIGHTS[target] * super().log_density(output, target)


class Clipped(ba.Gaussian):
    """Not certain of any target, by the terms of the density."""

    def element_log_density(self, output, target):
        return torch.logaddexp(super().element_log_density(output, target), torch.full_like(output, -4.0))


class Saturated(ba.Gaussian):
    """Another mean and another noise, by which a Gaussian is defined."""

    def mean_and_log_variance(self, output):
        return output.tanh(), -(output.square())


class Geometric(ba.likelihoods.Poisson):
    """Another distribution."""

    def distribution(self, output):
        return torch.distributions.Geometric(logits=-output, validate_args=False)


class Sure(ba.Categorical):
    """The density of the parent, with a smaller Fisher factor."""

    def fisher_factor(self, output, target):
        return 0.5 * super().fisher_factor(output, target)


class ByMixin:
    """Weights of the classes, for any likelihood of classes."""

    def log_density(self, output, target):
        return WEIGHTS[target] * super().log_density(output, target)


class Mixed(ByMixin, ba.Categorical):
    """The density of a mixin."""


class OfMixed(Mixed):
    """A subclass that changes nothing."""


class ByDistribution(ba.Gaussian):
    """Another distribution around the mean."""

    def distribution(self, output):
        return torch.distributions.Laplace(output, torch.ones_like(output), validate_args=False)


class Logistic(RegressionLikelihood):
    """Mean and variance, with a density that is not a Gaussian's."""

    def mean_and_log_variance(self, output):
        return output, torch.zeros_like(output)

    def element_log_density(self, output, target):
        return 2 * nn.functional.logsigmoid(target - output) - (target - output)


class Even(ba.Categorical):
    """Targets of the first class are ignored."""

    def counted(self, target):
        return target != 0


def classes(*shape):
    return draw(*shape, 3), torch.arange(torch.Size(shape).numel()).reshape(shape) % 3


def numbers(*shape):
    return draw(*shape, 2), draw(*shape, 2, seed=1)


def counts(*shape):
    return draw(*shape, 2), draw(*shape, 2, seed=1).abs().ceil()


CASES = [
    (Weighted, classes),
    (Clipped, numbers),
    (Saturated, numbers),
    (Geometric, counts),
    (Mixed, classes),
    (OfMixed, classes),
    (ByDistribution, numbers),
    (Logistic, numbers),
]


@pytest.mark.parametrize(("make", "data"), CASES)
def test_training_and_curvature_are_of_the_own_density(make, data):
    likelihood = make().double()
    output, target = data(4)
    leaf = output.clone().requires_grad_()
    density = likelihood.log_prob(leaf, target)
    close(likelihood.nll(output, target), -density.mean().detach())
    (slope,) = torch.autograd.grad(density.sum(), leaf)
    close(likelihood.score(output, target), slope)
    if make in (Saturated, ByDistribution):
        return  # the Fisher information, see below; no second derivative
    for row in range(4):
        at = lambda value, row=row: likelihood.log_prob(value[None], target[row : row + 1]).sum()  # noqa: E731
        hessian = -torch.autograd.functional.hessian(at, output[row])
        values, vectors = torch.linalg.eigh(hessian)
        factor = likelihood.fisher_factor(output[row : row + 1], target[row : row + 1])[0, 0]
        close(factor @ factor.mT, vectors @ values.clamp_min(0).diag() @ vectors.mT)


def test_information_of_another_mean_and_noise():
    output, target = numbers(4)
    factor = Saturated().double().fisher_factor(output, target)[:, 0]
    by_mean = (1 - output.tanh().square()).square() * output.square().exp()
    close(factor @ factor.mT, torch.diag_embed(by_mean + 2 * output.square()))


@pytest.mark.parametrize("make", [Weighted, Sure])
def test_the_sum_of_curvatures_is_that_of_the_own_factors(make):
    output, target = classes(40)
    factor = make().fisher_factor(output, target)[:, 0]
    close(make().fisher_sum(output, target), (factor @ factor.mT).sum(0))


def test_predictions_are_of_the_own_distribution():
    output, _ = counts(4)
    likelihood, given = Geometric(), Geometric().distribution(output)
    for found, expected in zip(likelihood.moments(output), (given.mean, given.variance), strict=True):
        close(found, expected)
    with pytest.raises(ba.likelihoods.MissingCapabilityError, match="must define cdf"):
        likelihood.cdf(output, output)


@pytest.mark.parametrize("make", [Clipped, Saturated, ByDistribution, Logistic])
@pytest.mark.parametrize("name", ["rescaled", "under_gaussian"])
def test_a_closed_form_of_the_parent_is_missing(make, name):
    assert not make().defines(name)
    with pytest.raises(ba.likelihoods.MissingCapabilityError, match=f"must define {name}, got {make.__name__}"):
        getattr(make(), name)(*[torch.ones(2)] * (1 + (name == "under_gaussian")))


def test_a_temperature_is_only_of_a_known_density():
    with pytest.raises(ba.likelihoods.MissingCapabilityError, match="must define tempered, got Clipped"):
        Clipped().tempered(2.0)
    output, target = classes(4)
    close(Weighted().tempered(2.0).log_prob(output, target), Weighted().log_prob(output / 2.0, target))


def test_own_ignored_targets_are_left_out_everywhere():
    output, target = classes(9)
    kept = target != 0
    close(Even().nll(output, target), -output.log_softmax(-1)[kept, target[kept]].mean())
    expected = -Weighted().log_prob(output[kept], target[kept]).mean()
    close(Weighted().nll(output, target.where(kept, -100)), expected)
    x, y, model = draw(60, 2), torch.arange(60) % 3, nn.Linear(2, 3).double()
    options = {"structure": "last_layer_kron", "prior_precision": 1.0}
    some = ba.laplace(model, (x, y), likelihood=Even(), **options)
    alone = ba.laplace(model, (x[y != 0], y[y != 0]), likelihood=ba.Categorical(), **options)
    close(some.marginal().variance["weight"], alone.marginal().variance["weight"], rtol=1e-9, atol=0.0)


def test_expectations_are_of_the_own_density():
    mean, target = numbers(3)
    likelihood, variance = Clipped().double(), 0.3 * torch.ones_like(mean)
    nodes = torch.linspace(-8, 8, 4001, **F64)
    weights = torch.distributions.Normal(0.0, 1.0).log_prob(nodes).exp() * (nodes[1] - nodes[0])
    terms = likelihood.element_log_density(mean + variance.sqrt() * nodes[:, None, None], target)
    close(
        likelihood.expected_log_density(mean, variance, target),
        torch.einsum("s,snd->n", weights, terms),
        rtol=1e-3,
        atol=1e-3,
    )
    close(
        likelihood.log_expected_density(mean, variance, target),
        torch.einsum("s,snd->nd", weights, terms.exp()).log().sum(-1),
        rtol=1e-6,
        atol=1e-6,
    )


SHIPPED = [
    (ba.Gaussian, numbers, 1e-9),
    (ba.HeteroscedasticGaussian, lambda n: (draw(n, 2), draw(n, 1, seed=1)), None),
    (ba.Bernoulli, lambda n: (draw(n, 2), draw(n, 2, seed=1) > 0), 2e-3),
    (ba.Categorical, classes, None),
    (ba.likelihoods.Poisson, counts, 1e-9),
    (ba.likelihoods.NegativeBinomial, counts, 1e-9),
    (ba.likelihoods.StudentT, numbers, 1e-9),
    (ba.likelihoods.LogNormal, counts, 1e-9),
    (ba.likelihoods.Gamma, counts, 1e-9),
]
INFORMATION = (ba.likelihoods.NegativeBinomial, ba.likelihoods.StudentT, ba.likelihoods.Gamma)


def dense(factors):
    return torch.stack([torch.block_diag(*(block @ block.mT for block in blocks)) for blocks in factors])


@pytest.mark.parametrize(("make", "data", "error"), SHIPPED)
def test_a_subclass_that_changes_nothing_has_the_same_numbers_by_the_general_way(make, data, error):
    plain, derived = make().double(), type("Derived", (make,), {})().double()
    output, target = data(5)
    for name in CLOSED_FORMS:
        general = [getattr(parent, name) for parent in (RegressionLikelihood, Likelihood) if issubclass(make, parent)]
        assert getattr(type(derived), name) in general
    for name in ("log_prob", "nll", "score"):
        close(getattr(derived, name)(output, target), getattr(plain, name)(output, target))
    for name in OF_DISTRIBUTION | MOMENTS:
        assert derived.defines(name) == plain.defines(name)
    if make not in INFORMATION:  # whose second derivatives at the targets are others
        close(*(dense(each.fisher_factor(output, target)) for each in (derived, plain)))
    for name in ("expected_log_density", "log_expected_density") if error else ():
        expected = getattr(plain, name)(output, torch.full_like(output, 0.3), target)
        close(getattr(derived, name)(output, torch.full_like(output, 0.3), target), expected, rtol=error, atol=error)


def test_a_closed_form_of_the_parent_can_be_named():
    class Written(ba.Gaussian):
        score = ba.Gaussian.score

    class Scored:
        score = ba.Gaussian.score

    assert Written.score is type("Mixed", (Scored, ba.Gaussian), {}).score is ba.Gaussian.score
    assert type("Later", (Written,), {}).score is Likelihood.score
