"""The predictive of any likelihood, against mixtures by scipy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import bayesadam as ba
from bayesadam.functional.monotone import Log1p
from likelihoods.models import ByDistribution, draw
from likelihoods.test_protocol import Sampled

OUTPUTS = draw(5, 4, 2)
SCALES = np.exp(OUTPUTS.numpy())


def mixture(likelihood, **options):
    return ba.predictive.MixturePredictive(OUTPUTS, likelihood, **options)


def close(a, b, rtol=1e-12):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=torch.float64), rtol=rtol, atol=1e-14)


class TestMixture:
    def test_moments(self):
        pred = mixture(ba.likelihoods.Poisson())
        close(pred.mean, SCALES.mean(0))
        close(pred.epistemic, SCALES.var(0, ddof=1))
        close(pred.aleatoric, SCALES.mean(0))
        close(pred.variance, SCALES.var(0, ddof=1) + SCALES.mean(0))
        one = ba.predictive.MixturePredictive(OUTPUTS[:1], ba.likelihoods.Poisson())
        assert not one.epistemic.any()
        assert repr(pred) == "MixturePredictive(Poisson, (4, 2), 5 components)"
        assert repr(one) == "MixturePredictive(Poisson, (4, 2), 1 component)"

    def test_densities(self):
        y = torch.tensor([[0, 1], [2, 3], [0, 0], [9, 1]])
        logs = stats.poisson(SCALES).logpmf(y.numpy()).sum(-1)
        pred = mixture(ba.likelihoods.Poisson())
        close(pred.log_prob(y), np.log(np.exp(logs).mean(0)))
        close(pred.joint_log_likelihood(y), np.log(np.exp(logs.sum(1)).mean()))
        assert ba.metrics.nll(pred, y) == pytest.approx(-np.log(np.exp(logs).mean(0)).mean())
        message = "^method must be 'monte_carlo' for the joint log-likelihood, got a separate distribution"
        with pytest.raises(ValueError, match=message):
            mixture(ba.likelihoods.Poisson(), independent=True).joint_log_likelihood(y)

    @pytest.mark.parametrize("level", [1e-4, 0.2, 0.5, 0.99])
    @pytest.mark.parametrize(
        ("likelihood", "outputs", "given"),
        [
            (ba.likelihoods.Gamma(2.0).double(), OUTPUTS, lambda z: stats.gamma(2.0, scale=np.exp(z) / 2.0)),
            (ByDistribution(), 12.0 * draw(64, 2), lambda z: stats.expon(scale=np.exp(-z))),
            (ba.likelihoods.StudentT(1.0).double(), 1e3 * OUTPUTS, stats.cauchy),  # without moments
        ],
    )
    def test_quantiles_have_their_probability(self, likelihood, outputs, given, level):
        found = ba.predictive.MixturePredictive(outputs, likelihood).quantile(level).numpy()
        below = given(outputs.numpy()).cdf(found).mean(0)
        np.testing.assert_allclose(below, level, rtol=1e-5)  # the shape is kept in float32

    @pytest.mark.parametrize("components", [20, 200])
    @pytest.mark.parametrize(
        "likelihood",
        [
            ba.likelihoods.Poisson(),
            ba.likelihoods.NegativeBinomial(0.3),
            ba.likelihoods.StudentT(),
            ba.likelihoods.Gamma(2.0),
            ba.likelihoods.LogNormal(),
            ba.Gaussian(),
        ],
    )
    def test_quantiles_of_outputs_that_are_nan(self, likelihood, components):
        outputs = draw(components, 3)
        outputs[3, 1] = math.nan
        found = ba.predictive.MixturePredictive(outputs, likelihood).quantile([0.01, 0.9])
        assert found[:, 1].isnan().all()
        rest = ba.predictive.MixturePredictive(outputs[:, [0, 2]], likelihood).quantile([0.01, 0.9])
        assert torch.equal(found[:, [0, 2]], rest)
        if likelihood.discrete:
            assert not rest[0].signbit().any()  # zeros, which are printed as 0 and not as -0

    @pytest.mark.parametrize("level", [1e-4, 0.2, 0.5, 0.99])
    def test_quantiles_of_counts_are_the_least_that_reach_the_probability(self, level):
        found = mixture(ba.likelihoods.Poisson()).quantile(level).numpy()
        counts = np.arange(200)[:, None, None, None]
        reached = stats.poisson(SCALES).cdf(counts).mean(1) >= level
        assert (found == reached.argmax(0)).all()

    @pytest.mark.parametrize("level", [1e-4, 0.025, 0.5, 0.975])
    def test_quantiles_of_counts_under_many_components(self, level):
        """The search starts at the quantile of a few components; outliers among the others put it far away."""
        outputs = 0.3 * draw(300, 4, 2) + torch.tensor([[-3.0, 0.0], [2.0, 4.0], [5.5, 6.0], [1.0, 3.0]])
        outputs[:9, 3] = 7.0
        scale = np.exp(outputs.numpy())
        for likelihood, exact in (
            (ba.likelihoods.Poisson(), stats.poisson(scale)),
            (ba.likelihoods.NegativeBinomial(0.25), stats.nbinom(4.0, 4.0 / (4.0 + scale))),
        ):
            found = ba.predictive.MixturePredictive(outputs, likelihood).quantile(level).numpy()
            assert (found == found.round()).all()
            assert (exact.cdf(found).mean(0) >= level).all()
            assert (exact.cdf(found - 1).mean(0) < level).all()

    def test_quantiles_of_counts_evaluate_few_distribution_functions(self):
        """An evaluation is that of all 640 components at all 50 data points."""
        evaluated = []

        class Counted(ba.likelihoods.NegativeBinomial):
            def cdf(self, output, value):
                evaluated.append(output.numel())
                return super().cdf(output, value)

        outputs = 3.5 + 0.15 * draw(640, 50) + 0.8 * draw(1, 50)
        ba.predictive.MixturePredictive(outputs, Counted(0.3)).quantile([0.025, 0.975])
        assert sum(evaluated) < 7 * outputs.numel()

    @pytest.mark.parametrize("log_rate", [30.0, 36.5, 80.0])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_quantiles_of_counts_that_floating_point_numbers_skip(self, log_rate, dtype):
        """Neighbours in float64 are more than 1 apart above 2^53."""
        outputs, levels = torch.full((1, 1), log_rate, dtype=dtype), np.array([0.05, 0.5, 0.95])
        rate = np.float64(outputs.exp().item())
        for likelihood, reference in (
            (ba.likelihoods.Poisson(), rate + stats.norm.ppf(levels) * np.sqrt(rate)),
            (ba.likelihoods.NegativeBinomial(1.0), -rate * np.log1p(-levels)),
            (ba.likelihoods.NegativeBinomial(1e-3), stats.gamma(1e3, scale=rate / 1e3).ppf(levels)),
        ):
            found = ba.predictive.MixturePredictive(outputs, likelihood).quantile(levels)
            reference = torch.tensor(reference, dtype=dtype)[:, None]
            torch.testing.assert_close(found, reference, rtol=1e-6, atol=0.0)

    def test_quantiles_of_infinite_rates(self):
        outputs = torch.tensor([[2.0, 800.0]], dtype=torch.float64)
        for likelihood in (ba.likelihoods.Poisson(), ba.likelihoods.NegativeBinomial()):
            found = ba.predictive.MixturePredictive(outputs, likelihood).quantile(0.5)
            alone = ba.predictive.MixturePredictive(outputs[:, :1], likelihood).quantile(0.5)
            assert found.tolist() == [*alone.tolist(), math.inf]

    @pytest.mark.parametrize("sd", [0.01, 1.0, 5.0, 7.0, 30.0])
    def test_quantiles_of_skewed_targets(self, sd):
        """Errors are small relative to the quantile, which is many orders below the standard deviation."""
        levels = np.array([1e-6, 0.025, 0.5, 0.95])
        likelihood = ba.likelihoods.LogNormal(sd**-2)
        sd = math.exp(-0.5 * likelihood.log_noise_precision.item())  # it is kept in float32
        found = ba.predictive.MixturePredictive(OUTPUTS[:1], likelihood).quantile(levels)
        expected = torch.tensor(np.exp(OUTPUTS[0].numpy() + sd * stats.norm.ppf(levels)[:, None, None]))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0.0)

    def test_quantiles_by_draws(self):
        outputs = draw(8, 3)
        found = ba.predictive.MixturePredictive(outputs, Sampled()).quantile([0.3, 0.8])
        assert found.shape == (2, 3)
        below = (1 - np.exp(-found.numpy()[:, None] * np.exp(outputs.numpy()))).mean(1)
        assert np.abs(below - [[0.3], [0.8]]).max() < 4 * (0.25 / 1024) ** 0.5

    def test_shapes_of_quantiles(self):
        pred = mixture(ByDistribution())
        assert pred.quantile(0.5).shape == (4, 2)
        assert pred.quantile([[0.1, 0.5, 0.9]]).shape == (1, 3, 4, 2)

    def test_draws(self):
        pred = mixture(ba.likelihoods.Poisson())
        count = 20_000
        state = torch.get_rng_state()
        draws = pred.sample(count, seed=1).numpy()
        assert torch.get_rng_state().equal(state)
        assert draws.shape == (count, 4, 2)
        total = SCALES.mean(0) + SCALES.var(0)
        assert np.abs((draws.mean(0) - SCALES.mean(0)) / np.sqrt(SCALES.mean(0) / count)).max() < 4
        fourth = ((draws - draws.mean(0)) ** 4).mean(0)
        assert np.abs((draws.var(0) - total) / np.sqrt((fourth - total**2) / count)).max() < 4
        # One component for all data points: those with similar outputs vary together.
        expected = np.cov(SCALES.reshape(5, -1).T, ddof=0)
        found = np.cov(draws.reshape(count, -1).T)
        off = ~np.eye(8, dtype=bool)
        assert np.corrcoef(found[off], expected[off])[0, 1] > 0.9

    def test_draws_leave_accelerators_alone(self, monkeypatch):
        """Their generators are not restored after draws on the CPU, and so must not be seeded."""
        seeds = []
        monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
        mixture(ba.likelihoods.Poisson()).sample(3)
        base = ba.predictive.GaussianPredictive(OUTPUTS[0, :, 0], torch.ones(4), torch.ones(4))
        ba.predictive.TransformedPredictive(base, [Log1p(high=9.0)]).sample(3)
        assert not seeds

    def test_a_copy_of_the_likelihood_is_kept(self):
        likelihood = ba.likelihoods.Gamma(2.0, learned=True).double()
        pred = ba.predictive.MixturePredictive(OUTPUTS, likelihood)
        with torch.no_grad():
            likelihood.log_shape.add_(1.0)
        close(pred.aleatoric, (SCALES**2 / 2.0).mean(0), rtol=1e-6)
        assert not pred.aleatoric.requires_grad

    def test_distribution_functions(self):
        y = torch.tensor([[0.3, 1.0], [2.0, 3.5], [0.1, 0.2], [9.0, 1.0]], dtype=torch.float64)
        close(
            mixture(ba.likelihoods.Gamma(2.0)).cdf(y), stats.gamma(2.0, scale=SCALES / 2.0).cdf(y.numpy()).mean(0), 1e-7
        )
        gaussians = ba.predictive.RegressionPredictive(OUTPUTS, torch.full_like(OUTPUTS, 0.25))
        close(gaussians.cdf(y), stats.norm(OUTPUTS.numpy(), 0.5).cdf(y.numpy()).mean(0))
        with pytest.raises(ValueError, match=r"target must be of"):
            gaussians.cdf(y[:2])

    def test_other_units(self):
        likelihood = ba.likelihoods.StudentT(5.0, scale=0.5).double()
        y = draw(4, 2, seed=3)
        pred, mean, std = mixture(likelihood), torch.tensor([3.0, -1.0]), torch.tensor([10.0, 0.2])
        changed = pred.rescale(mean, std)
        torch.testing.assert_close(changed.mean, mean + std * pred.mean, rtol=1e-6, atol=0)
        torch.testing.assert_close(changed.variance, std**2 * pred.variance, rtol=1e-6, atol=0)
        expected = pred.log_prob(y) - std.log().sum()
        torch.testing.assert_close(changed.log_prob(mean + std * y), expected, rtol=1e-6, atol=1e-6)


def by(make, **attributes):
    """A likelihood of a distribution given the outputs."""
    return type("By", (ba.likelihoods.Likelihood,), {"distribution": lambda self, output: make(output), **attributes})()


class TestSupports:
    """Of a user's distributions, which depend on the outputs: a component of a mixture may exclude a value."""

    OUTPUTS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)

    def of(self, make, **attributes):
        return ba.predictive.MixturePredictive(self.OUTPUTS, by(make, **attributes))

    def test_a_lower_bound(self):
        pred = self.of(lambda z: torch.distributions.Pareto(z.exp(), 3.0 + 0 * z, validate_args=False))
        parts = stats.pareto(3.0, scale=np.exp(self.OUTPUTS.numpy()[:, 0]))
        for y in (1.5, 3.0):
            target = torch.tensor([y], dtype=torch.float64)
            close(pred.cdf(target), [parts.cdf(y).mean()])
            close(pred.log_prob(target), [np.log(parts.pdf(y).mean())])
        for level in (0.05, 0.3, 0.9):
            assert parts.cdf(pred.quantile(level).item()).mean() == pytest.approx(level, abs=1e-6)
        with pytest.raises(ValueError, match="(?s)^target must be in the support of By, .*, got 0.5$"):
            pred.log_prob(torch.tensor([0.5], dtype=torch.float64))

    @pytest.mark.parametrize("flipped", [False, True])
    def test_intervals(self, flipped):
        shift = 0.6 if not flipped else -0.6
        pred = self.of(lambda z: torch.distributions.Uniform(z * shift, z * shift + 1, validate_args=False))
        target = torch.tensor([0.8 if not flipped else 0.1], dtype=torch.float64)
        close(pred.log_prob(target), [0.0])
        beyond = torch.tensor([1.2 if not flipped else 0.8], dtype=torch.float64)
        close(pred.log_prob(beyond), [math.log(0.5)])
        close(pred.cdf(beyond), [0.8 if not flipped else 0.9])

    def test_an_upper_bound(self):
        pred = self.of(lambda z: torch.distributions.Kumaraswamy(1 + 0 * z, 2 + 0 * z, validate_args=False))
        assert pred.quantile(0.95).item() == pytest.approx(1 - 0.05**0.5, rel=1e-6)

    def test_quantiles_of_integers_are_integers(self):
        likelihood = by(lambda z: torch.distributions.Binomial(10, logits=z, validate_args=False), discrete=True)
        pred = ba.predictive.MixturePredictive(draw(8, 500), likelihood)
        found = pred.quantile([0.025, 0.31, 0.975])
        assert torch.equal(found, found.round())
        assert found.min() >= 0
        assert found.max() <= 10

    def test_moments_that_torch_does_not_know_are_those_of_draws(self):
        normal, sigmoid = torch.distributions.Normal, torch.distributions.SigmoidTransform()
        pred = self.of(lambda z: torch.distributions.TransformedDistribution(normal(z, 1 + 0 * z), [sigmoid]))
        x, w = np.polynomial.hermite_e.hermegauss(60)
        means = [(1 / (1 + np.exp(-(z + x))) * w).sum() / w.sum() for z in (0.0, 1.0)]
        assert pred.mean.item() == pytest.approx(np.mean(means), abs=0.03)
