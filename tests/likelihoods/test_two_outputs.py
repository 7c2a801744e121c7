"""A likelihood of one's own with two outputs for each target, beside the one of the library that is the same."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal

import bayesadam as ba
from bayesadam.likelihoods import Likelihood
from bayesadam.sklearn import BayesianMLPRegressor


class Noisy(Likelihood):
    """Mean and log variance, without a ``check`` of its own."""

    outputs_per_target = 2

    def distribution(self, output):
        mean, log_variance = output.chunk(2, -1)
        return Normal(mean, (0.5 * log_variance).exp(), validate_args=False)


X = torch.linspace(-2, 2, 300).view(100, 3)
OWN, SHIPPED = Noisy(), ba.HeteroscedasticGaussian()


def targets(count):
    torch.manual_seed(0)
    return X[:, :1].sin() + 0.1 * torch.randn(100, count)


def network(count, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2 * count))


@pytest.mark.parametrize("count", [1, 3])
class TestLoops:
    def test_training(self, count):
        model, y = network(count), targets(count)
        torch.testing.assert_close(OWN.nll(model(X), y), SHIPPED.nll(model(X), y))
        torch.testing.assert_close(OWN.log_prob(model(X), y), SHIPPED.log_prob(model(X), y))

    @pytest.mark.parametrize("method", ["monte_carlo", "mean"])
    def test_predictions(self, count, method):
        model, y = network(count), targets(count)
        q = ba.DiagonalGaussian.point_mass(model)
        q = ba.DiagonalGaussian(q.mean, {name: torch.full_like(mean, 0.01) for name, mean in q.mean.items()})
        own, shipped = (ba.predict(model, q, X, likelihood=each, method=method) for each in (OWN, SHIPPED))
        for name in ("mean", "variance", "epistemic", "aleatoric"):
            torch.testing.assert_close(getattr(own, name), getattr(shipped, name))
        torch.testing.assert_close(own.log_prob(y), shipped.log_prob(y))
        torch.testing.assert_close(own.quantile(0.3), shipped.quantile(0.3), atol=1e-4, rtol=1e-4)
        assert own.sample(5).shape == (5, 100, count)
        assert ba.metrics.nll(own, y) == pytest.approx(ba.metrics.nll(shipped, y), rel=1e-5)

    def test_wrong_shapes(self, count):
        message = rf"^target must be of a shape with one number for every 2 outputs, \(5, {count}\), got \(5,\)$"
        with pytest.raises(ValueError, match=message):
            OWN.nll(torch.zeros(5, 2 * count), torch.zeros(5))
        message = rf"^output must have 2 numbers for each target along its last axis, got shape \(5, {2 * count + 1}\)$"
        with pytest.raises(ValueError, match=message):
            OWN.nll(torch.zeros(5, 2 * count + 1), torch.zeros(5, count))


def test_regressors_have_it_built_in():
    with pytest.raises(
        ValueError, match=r"^likelihood must have one output per target, or be Gaussian, got Noisy\(\)$"
    ):
        BayesianMLPRegressor(likelihood=Noisy()).fit(X.numpy(), targets(1).numpy())
