"""Components of mixtures, which have exact weights, and samples that are the same network, which take one pass."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.likelihoods import Poisson
from bayesadam.posterior import BernoulliPosterior, PartialGaussian
from bayesadam.predictive.base import variance_of_strata
from posterior.kinds import around, weights

from .test_rows import Seen

X = torch.linspace(-1, 1, 60).view(20, 3)
LIKELIHOODS = [ba.Gaussian(), ba.HeteroscedasticGaussian(), ba.Categorical(), ba.Bernoulli(), Poisson()]


def network(seed=0, outputs=2):
    torch.manual_seed(seed)
    return Seen(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).eval()


def predict(model, q, likelihood=None, **options):
    model.seen.clear()
    return ba.predict(model, q, X, likelihood=likelihood or ba.Gaussian(), **options)


def fixed(model):
    """Posteriors without variance, of several kinds, around the weights of a model."""
    mean = weights(model)
    last = {name: mean[name] for name in ("2.weight", "2.bias")}
    rest = {name: mean[name] for name in ("0.weight", "0.bias")}
    zeros = {name: torch.zeros_like(p) for name, p in mean.items()}
    return {
        "point mass": ba.DiagonalGaussian.point_mass(model),
        "scaled": around(model, 0.1).scaled(0.0),
        "low rank": ba.LowRankGaussian(mean, zeros, {name: torch.zeros(2, *p.shape) for name, p in mean.items()}),
        "kronecker": ba.KroneckerGaussian(mean, zeros, {}, {}),
        "partial": PartialGaussian(ba.DiagonalGaussian.point_mass(last), rest, order=list(mean)),
        "bernoulli": BernoulliPosterior({name: torch.ones_like(p) for name, p in mean.items()}, mean),
        "ensemble of one": ba.ensemble([model]),
        "mixture of mixtures": ba.Mixture([ba.ensemble([model])]),
    }


KINDS = list(fixed(network()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_without_variance_takes_one_pass(kind):
    model = network()
    found = predict(model, fixed(model)[kind])
    assert model.seen == [20]
    assert torch.equal(found.mean, model(X))
    assert not found.epistemic.any()


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("mc_samples", [1, 7, 64])
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda likelihood: type(likelihood).__name__)
def test_ensembles_are_averages(likelihood, mc_samples, count):
    models = [network(seed) for seed in range(count)]
    found = predict(models[0], ba.ensemble(models), likelihood, mc_samples=mc_samples)
    assert models[0].seen == [20] * count
    outputs = torch.stack([model(X) for model in models]).detach()
    if likelihood.defines("log_probs"):
        expected = likelihood.log_probs(outputs).exp().mean(0)
        torch.testing.assert_close(found.class_probs, expected)
        return
    means, variances = likelihood.moments(outputs)
    torch.testing.assert_close(found.mean, means.mean(0))
    torch.testing.assert_close(found.aleatoric, variances.mean(0))
    torch.testing.assert_close(found.epistemic, means.var(0, correction=0))
    if likelihood.defines("rescaled"):
        torch.testing.assert_close(found.rescale(1.0, 2.0).epistemic, 4 * means.var(0, correction=0))


def test_mixtures_of_unequal_mixtures():
    models = [network(seed) for seed in range(6)]
    q = ba.Mixture([ba.ensemble(models[:2]), ba.ensemble(models[2:5]), ba.ensemble(models[5:])])
    found = predict(models[0], q, ba.Categorical())
    assert models[0].seen == [20] * 6
    outputs = torch.stack([model(X).softmax(-1) for model in models])
    expected = torch.stack([outputs[:2].mean(0), outputs[2:5].mean(0), outputs[5]]).mean(0)
    torch.testing.assert_close(found.probs, expected)
    found = predict(models[0], q)
    means = torch.stack([model(X) for model in models])
    share = torch.tensor([1 / 6, 1 / 6, 1 / 9, 1 / 9, 1 / 9, 1 / 3]).view(6, 1, 1)
    mean = (share * means).sum(0)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.epistemic, (share * (means - mean).square()).sum(0))


@pytest.mark.parametrize(("mc_samples", "each"), [(1, 1), (3, 1), (4, 2), (64, 22)])
def test_random_and_certain_components(mc_samples, each):
    models = [network(seed) for seed in range(3)]
    q = ba.Mixture([around(models[0], 0.1), ba.ensemble([models[1]]), around(models[2], 0.1)])
    found = predict(models[0], q, mc_samples=mc_samples)
    assert len(models[0].seen) == 1 + 2 * each
    assert len(found.means) == 3 * each
    theta = q.sample(3 * each)
    for number, mean in enumerate(found.means):
        values = {name: value[number] for name, value in theta.items()}
        torch.testing.assert_close(mean, torch.func.functional_call(models[0], values, X))


@pytest.mark.parametrize("each", [2, 5])
def test_epistemic_variance_is_unbiased(each):
    """The mean over many sets of samples is the variance within the components and that between their means."""
    means, deviations = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([1.0, 0.0, 2.0])
    samples = (means + deviations * torch.randn(100_000, each, 3, dtype=torch.float64)).flatten(1).T
    found = variance_of_strata(samples, 3)
    exact = deviations.square().mean() + means.var(correction=0)
    error = found.std().item() / len(found) ** 0.5
    assert abs(found.mean().item() - exact) < 4 * error
    assert error < 0.005 * exact


def test_pruned_ensembles_and_own_statistics():
    model = Seen(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval()
    predict(model, ba.ensemble([model, model]), batch_norm=X)
    assert model.seen == [20] * 4  # two for the statistics
    model.seen.clear()
    target = torch.zeros(20, 1)
    options = {"likelihood": ba.Gaussian(), "fractions": [0.5], "by": "magnitude"}
    ba.pruning_curve(model, ba.DiagonalGaussian.point_mass(model), (X, target), **options)
    assert model.seen == [20]
