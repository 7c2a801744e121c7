"""Likelihoods against torch.distributions and torch's own losses."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import distributions as dist
from torch.nn import functional

import bayesadam as ba
from likelihoods.models import close
from posthoc.models import draw, gaussian

F64 = {"dtype": torch.float64}


def normal(output, precision=4.0):
    return dist.Normal(output, torch.tensor(precision, **F64) ** -0.5)


def of_classes(output):
    return dist.Categorical(logits=output)


def of_network(output):
    mean, log_variance = output.chunk(2, -1)
    return rows(dist.Normal(mean, (log_variance / 2).exp()))


def rows(distribution):
    """The outputs of a data point together."""
    return dist.Independent(distribution, 1)


BITS, OWN = torch.arange(12).view(6, 2) % 3 % 2, [0.5, 2.0, 30.0]
#: A likelihood, outputs of two samples of the weights, targets, and the distribution given outputs.
CASES = {
    "gaussian": (gaussian(4.0), draw(2, 6), draw(6, seed=1), normal),
    "several outputs": (gaussian(4.0), draw(2, 6, 3), draw(6, 3, seed=1), lambda o: rows(normal(o))),
    "own precisions": (gaussian(OWN), draw(2, 6, 3), draw(6, 3, seed=1), lambda o: rows(normal(o, OWN))),
    "the network's noise": (ba.HeteroscedasticGaussian(), draw(2, 6, 4), draw(6, 2, seed=1), of_network),
    "one output and its noise": (ba.HeteroscedasticGaussian(), draw(2, 6, 2), draw(6, 1, seed=1), of_network),
    "two classes": (ba.Bernoulli(), 3 * draw(2, 6), BITS[:, 0].bool(), lambda o: dist.Bernoulli(logits=o)),
    "several labels": (ba.Bernoulli(), 3 * draw(2, 6, 2), BITS, lambda o: rows(dist.Bernoulli(logits=o))),
    "classes": (ba.Categorical(), 3 * draw(2, 6, 4), torch.arange(6) % 4, of_classes),
    "bytes": (ba.Categorical(), draw(2, 6, 4), (torch.arange(6) % 4).to(torch.uint8), of_classes),
    "axes of one size": (ba.Categorical(), draw(2, 2, 2), torch.arange(2), of_classes),
    "tokens": (ba.Categorical(), draw(2, 3, 5, 4), torch.arange(15).view(3, 5) % 4, of_classes),
}


@pytest.mark.parametrize("name", CASES)
def test_densities(name):
    """Leading axes of samples stay, data points are independent, and no value is read under vmap."""
    likelihood, outputs, target, given = CASES[name]
    value = target if target.is_floating_point() or isinstance(likelihood, ba.Categorical) else target.double()
    expected = torch.stack([given(output).log_prob(value) for output in outputs])
    close(likelihood.log_prob(outputs, target), expected)
    for output, terms in zip(outputs, expected, strict=True):
        close(likelihood.nll(output, target), -terms.mean())
        close(likelihood(output, target), -terms.mean())
        assert likelihood.check(output, target) is None
        for n, term in enumerate(terms):
            close(-likelihood.nll(output[n : n + 1], target[n : n + 1]), term.mean())
    targets = target.expand(len(outputs), *target.shape)
    close(torch.func.vmap(likelihood.log_density)(outputs, targets), expected)
    if likelihood.defines("moments"):
        distribution = given(outputs)
        close(likelihood.moments(outputs), (distribution.mean, distribution.variance))


@pytest.mark.parametrize("likelihood", [ba.Gaussian(2.0, learned=True), ba.Gaussian([0.5, 2.0], learned=True)])
def test_gradients_with_learned_noise(likelihood):
    likelihood.double()
    (noise,) = likelihood.parameters()
    output, target = draw(6, 2).requires_grad_(), draw(6, 2, seed=1)

    def loss(output, noise):
        return torch.func.functional_call(likelihood, {"log_noise_precision": noise}, (output, target))

    assert torch.autograd.gradcheck(loss, (output, noise.detach().requires_grad_()))


def test_fixed_noise_is_no_parameter_but_is_saved():
    assert not list(ba.Gaussian(2.0).parameters())
    for learned in (False, True):
        saved, fresh = ba.Gaussian([2.0, 7.0], learned=learned), ba.Gaussian([1.0, 1.0], learned=learned)
        fresh.load_state_dict(saved.state_dict())
        close(fresh.noise_precision, torch.tensor([2.0, 7.0]), rtol=1e-6, atol=0)


def test_gaussian_follows_the_dtype_of_the_output():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for likelihood in (ba.Gaussian(2.0), ba.Gaussian(2.0, learned=True)):
            assert likelihood.nll(torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("log_variance", [-150.0, -95.0, -80.0, 80.0, 120.0, 1e4])
def test_extreme_log_variances_in_float32(log_variance):
    output = torch.tensor([[0.5, log_variance]], requires_grad=True)
    loss = ba.HeteroscedasticGaussian().nll(output, torch.tensor([[0.5]]))
    loss.backward()
    close(loss.item(), 0.5 * (log_variance + math.log(2 * math.pi)), rtol=1e-6, atol=0)
    close(output.grad, torch.tensor([[0.0, 0.5]]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(7,), (7, 3)])
def test_soft_labels_of_two_classes(shape):
    output, target = 3 * draw(*shape), torch.sigmoid(draw(*shape, seed=1))
    terms = -functional.binary_cross_entropy_with_logits(output, target, reduction="none")
    close(ba.Bernoulli().log_prob(output, target), terms if len(shape) == 1 else terms.sum(-1))


def test_logarithms_of_probabilities():
    output = draw(4, 7)
    p = torch.sigmoid(output)
    close(ba.Bernoulli().log_probs(output).exp(), torch.stack([1 - p, p], -1))
    for classes in (1, 2, 10, 15, 16, 100):
        logits = 9.0 * torch.randn(3, 5, classes)
        logits[0, 0, 0] = -torch.inf
        torch.testing.assert_close(
            ba.Categorical().log_probs(logits), logits.log_softmax(-1), rtol=1e-6, atol=1e-6, equal_nan=True
        )
        assert ba.Categorical().log_probs(logits).is_contiguous()


def test_bernoulli_at_extreme_logits_in_float32():
    output = torch.tensor([1e4, 1e4, -1e4, -1e4], requires_grad=True)
    target = torch.tensor([1, 0, 1, 0])
    log_prob = ba.Bernoulli().log_prob(output, target)
    close(log_prob.detach(), torch.tensor([0.0, -1e4, -1e4, 0.0]))
    log_prob.sum().backward()
    close(output.grad, torch.tensor([0.0, -1.0, 1.0, 0.0]))


def test_small_probabilities_keep_their_digits():
    """log(1 - sigmoid(-40)) is -4e-18, not 0."""
    log_prob = ba.Bernoulli().log_prob(torch.tensor([-40.0]), torch.tensor([0]))
    close(log_prob, -torch.tensor([math.exp(-40.0)]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_expected_densities_of_soft_labels(shape):
    """Hard labels beside them keep the approximation by probits."""
    mean = torch.tensor([-8.0, -8.0, 2.0, 0.3, -8.0, 3.0]).double().view(shape)
    variance = torch.tensor([25.0, 25.0, 4.0, 0.01, 25.0, 2.0]).double().view(shape)
    target = torch.tensor([0.3, 0.99, 0.5, 0.2, 0.0, 1.0]).double().view(shape)
    found = ba.Bernoulli().log_expected_density(mean, variance, target).flatten()
    z = np.linspace(-60.0, 60.0, 200_001)
    m, v, y = (part.flatten().numpy()[:, None] for part in (mean, variance, target))
    logs = -y * np.logaddexp(0.0, -z) - (1.0 - y) * np.logaddexp(0.0, z) + stats.norm(m, np.sqrt(v)).logpdf(z)
    expected = torch.tensor(special.logsumexp(logs, axis=1) + np.log(z[1] - z[0]))
    close(found[:4], expected[:4], rtol=1e-6, atol=1e-6)
    close(found[4:], expected[4:], rtol=0.0, atol=0.02)
    hard = ba.Bernoulli().log_expected_density(mean[4:], variance[4:], target[4:] > 0.5).flatten()
    assert torch.equal(found[4:], hard)


def test_categorical_at_extreme_logits_in_float32():
    output = torch.tensor([[1e4, -1e4, 0.0], [1e4, -1e4, 0.0]], requires_grad=True)
    log_prob = ba.Categorical().log_prob(output, torch.tensor([0, 1]))
    close(log_prob.detach(), torch.tensor([0.0, -2e4]))
    log_prob.sum().backward()
    assert output.grad.isfinite().all()


@pytest.mark.parametrize(
    ("likelihood", "shown"),
    [
        (ba.Categorical(), "Categorical()"),
        (ba.Gaussian(25.0), "Gaussian(noise_precision=25)"),
        (ba.Gaussian([1.0, 2.0, 3.0, 4.0, 5.0], learned=True), "Gaussian(noise_precision=1 2 3 4 ...)"),
        (ba.Categorical().tempered(2.0), "TemperedClassification(Categorical(), temperature=2)"),
    ],
)
def test_repr_shows_the_noise(likelihood, shown):
    assert repr(likelihood) == shown
