"""Which method ``predict`` takes where none is given, and mixtures of linearised networks."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba
from bayesadam.posterior import load_posterior
from bayesadam.predictive.linearized_mixture import GaussianMixturePredictive

GAUSSIAN = ba.Gaussian(25.0)
UNSUITED = "^method='monte_carlo' puts samples of a Badam or Laplace posterior into the network itself"


def perceptron(inputs=1, outputs=1, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 20), nn.Tanh(), nn.Linear(20, outputs))


def trained(model, x, y, likelihood, steps=200):
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        adam.zero_grad()
        likelihood(model(x), y).backward()
        adam.step()
    return adam


@pytest.fixture(scope="module")
def regression():
    x = torch.linspace(-1, 1, 60).unsqueeze(1)
    y = torch.sin(3 * x) + 0.2 * torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    models = [perceptron(seed=seed) for seed in range(3)]
    adams = [trained(model, x, y, GAUSSIAN) for model in models]
    return x, y, models, adams


def laplaces(regression, structure="full", **options):
    x, y, models, _ = regression
    return [
        ba.posthoc.LaplaceApproximation(model, (x, y), likelihood=GAUSSIAN, structure=structure).posterior(
            1.0, **options
        )
        for model in models
    ]


def predict(regression, posterior, **options):
    x, _, models, _ = regression
    return ba.predict(models[0], posterior, 2 * x, likelihood=GAUSSIAN, **options)


def same(a, b):
    assert type(a) is type(b)
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=0)
    torch.testing.assert_close(a.variance, b.variance, rtol=0, atol=0)


@pytest.mark.parametrize("structure", ["kron", "full"])
def test_laplace_posteriors_are_linearized(regression, structure, tmp_path):
    (q, *_) = laplaces(regression, structure)
    same(predict(regression, q), predict(regression, q, method="linearized"))
    q.save(tmp_path / "q.safetensors")
    same(predict(regression, load_posterior(tmp_path / "q.safetensors")), predict(regression, q))
    _, _, models, adams = regression
    badam = ba.badam(adams[0], models[0], num_data=60)
    same(predict(regression, badam), predict(regression, badam, method="linearized"))


def test_all_others_are_sampled(regression):
    _, _, models, _ = regression
    opt = ba.Vadam(models[0].named_parameters(), num_data=60)
    last_layer = laplaces(regression, "last_layer")[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*initial_precision")
        learned = opt.posterior(models[0])
    factored = laplaces(regression, "last_layer_kron")[0]
    for q in (
        learned,
        last_layer,
        factored,
        ba.ensemble(models),
        ba.Mixture([learned, laplaces(regression)[0]]),
    ):
        same(predict(regression, q), predict(regression, q, method="monte_carlo"))


@pytest.mark.parametrize("structure", ["last_layer", "last_layer_kron"])
def test_posteriors_over_a_hidden_layer_are_linearized(regression, structure, tmp_path):
    """Samples of a hidden layer leave the region where the linearisation holds, as those of all layers do."""
    x, y, models, _ = regression
    q = ba.laplace(models[0], (x, y), likelihood=GAUSSIAN, structure=structure, prior_precision=1.0, last_layer="0")
    q.save(tmp_path / "q.safetensors")
    for posterior in (q, load_posterior(tmp_path / "q.safetensors"), ba.Mixture([q])):
        torch.testing.assert_close(
            predict(regression, posterior).variance, predict(regression, q, method="linearized").variance
        )
        with pytest.warns(UserWarning, match=UNSUITED):
            predict(regression, posterior, method="monte_carlo", mc_samples=2)


def test_mixtures_over_the_last_layer_are_linearized(regression):
    """Each component would have a share of the samples only."""
    q = ba.Mixture(laplaces(regression, "last_layer"))
    same(predict(regression, q), predict(regression, q, method="linearized"))


def test_samples_are_warned_of(regression):
    x, y, models, _ = regression
    q = laplaces(regression)[0]
    for posterior in (q, q.scaled(0.5), ba.Mixture([q, q])):
        with pytest.warns(UserWarning, match=UNSUITED) as caught:
            predict(regression, posterior, method="monte_carlo", mc_samples=2)
        assert caught[0].filename == __file__
    tuned = ba.tune_posterior(q, models[0], (x, y), likelihood=GAUSSIAN, method="monte_carlo", temperature=[1.0])
    predict(regression, tuned.posterior, method="monte_carlo", mc_samples=2)  # a warning would be an error
    assert "tuned_for" not in q.hyperparameters
    same(
        predict(regression, tuned.posterior, mc_samples=2),
        predict(regression, tuned.posterior, mc_samples=2, method="monte_carlo"),
    )


def test_rows_with_many_outputs_are_samples_of_the_linearised_network():
    model, likelihood = perceptron(3, 129), ba.Categorical()
    x, y = torch.randn(6, 3), torch.arange(6)
    q = ba.posthoc.LaplaceApproximation(model, (x, y), likelihood=likelihood, curvature="empirical_fisher").posterior(
        100.0
    )
    options = {"likelihood": likelihood, "mc_samples": 3}
    sampled = ba.predict(model, q, x, method="linearized", **options)
    assert sampled.log_probs.shape == (3, 6, 129)
    for inputs in (x, (part for part in x.split(2)), DataLoader(TensorDataset(x, y), batch_size=4)):
        torch.testing.assert_close(ba.predict(model, q, inputs, **options).log_probs, sampled.log_probs)


class TestMixture:
    def test_gaussian_targets(self, regression):
        x, _, models, _ = regression
        parts = laplaces(regression)
        q = ba.Mixture(parts)
        found = predict(regression, q)
        assert isinstance(found, GaussianMixturePredictive)
        each = [ba.predict(model, part, 2 * x, likelihood=GAUSSIAN) for model, part in zip(models, parts, strict=True)]
        means = torch.stack([p.mean for p in each])
        torch.testing.assert_close(found.mean, means.mean(0))
        within = torch.stack([p.epistemic for p in each]).mean(0)
        torch.testing.assert_close(found.epistemic, within + means.var(0, correction=0))
        torch.testing.assert_close(found.aleatoric, torch.full((60, 1), 0.04))
        torch.testing.assert_close(found.variance, found.epistemic + found.aleatoric)
        target = torch.zeros(60, 1)
        density = torch.stack([p.log_prob(target) for p in each]).logsumexp(0) - math.log(3)
        torch.testing.assert_close(found.log_prob(target), density)
        other = found.rescale(3.0, 2.0)
        torch.testing.assert_close(other.mean, 3 + 2 * found.mean)
        torch.testing.assert_close(other.epistemic, 4 * found.epistemic)
        torch.testing.assert_close(other.aleatoric, 4 * found.aleatoric)
        low, high = found.quantile([0.025, 0.975])
        assert ((low < found.mean) & (found.mean < high)).all()
        with pytest.raises(ValueError, match="^method must be 'monte_carlo' for the joint log-likelihood"):
            found.joint_log_likelihood(target)

    def test_other_targets(self):
        x = torch.linspace(-1, 1, 40).unsqueeze(1)
        for likelihood, y, outputs in (
            (ba.Categorical(), (x[:, 0] > 0).long(), 2),
            (ba.Bernoulli(), (x > 0).float(), 1),
            (ba.likelihoods.Poisson(), (2 * (x > 0)).float(), 1),
        ):
            models = [perceptron(outputs=outputs, seed=seed) for seed in range(2)]
            for model in models:
                trained(model, x, y, likelihood, steps=50)
            parts = [ba.laplace(model, (x, y), likelihood=likelihood, prior_precision=10.0) for model in models]
            options = {"likelihood": likelihood, "mc_samples": 1500}
            found = ba.predict(models[0], ba.Mixture(parts), x, **options)
            each = [ba.predict(model, q, x, **options) for model, q in zip(models, parts, strict=True)]
            target = y
            density = torch.stack([p.log_prob(target) for p in each]).logsumexp(0) - math.log(2)
            torch.testing.assert_close(found.log_prob(target), density, rtol=0.08, atol=0.08)
            with pytest.raises(ValueError, match="for the joint log-likelihood"):
                found.joint_log_likelihood(target)
            if isinstance(likelihood, ba.Categorical):
                assert (found.mutual_information > 0).all()


@pytest.mark.filterwarnings("ignore:the noise of the likelihood must fit")
def test_a_mixture_of_equal_components_is_one_of_them():
    """Its density uses the covariance of the outputs of a row, and noise whose variance is out of range."""
    x = torch.randn(30, 3)
    model = nn.Sequential(nn.Linear(3, 1), nn.Tanh(), nn.Linear(1, 2))  # outputs share a unit, and so are correlated
    options = {"likelihood": ba.Gaussian(1e4), "method": "linearized"}
    q = ba.laplace(
        model, (x, torch.randn(30, 2)), likelihood=ba.Gaussian(100.0), structure="full", prior_precision=0.01
    )
    one, both = (ba.predict(model, posterior, x, **options) for posterior in (q, ba.Mixture([q, q])))
    correlation = one.covariance[:, 0, 1] / one.variance.prod(-1).sqrt()
    assert correlation.abs().mean() > 0.2
    target = one.mean + 0.05
    torch.testing.assert_close(both.log_prob(target), one.log_prob(target))
    torch.testing.assert_close(both.rescale(3.0, 2.0).log_prob(target), one.rescale(3.0, 2.0).log_prob(target))
    torch.testing.assert_close(both.quantile([0.1, 0.9]), one.quantile([0.1, 0.9]))

    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.bias[1] = -120.0
        target = model(x)[:, :1]
    q = ba.DiagonalGaussian.point_mass(model)
    options["likelihood"] = ba.likelihoods.HeteroscedasticGaussian()
    one, both = (ba.predict(model, posterior, x, **options) for posterior in (q, ba.Mixture([q, q])))
    assert one.log_prob(target).isfinite().all()
    torch.testing.assert_close(both.log_prob(target), one.log_prob(target))
    torch.testing.assert_close(both.rescale(3.0, 2.0).log_prob(target), one.rescale(3.0, 2.0).log_prob(target))
