"""The predictive of a transformed Gaussian against integrals of its density on a fine grid."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from bayesadam import metrics
from bayesadam.functional.monotone import Identity, Log, Log1p, PiecewiseLinear, SquareRoot, YeoJohnson
from bayesadam.predictive import GaussianPredictive, TransformedPredictive

F64 = torch.float64
MEAN, VARIANCE = torch.tensor([0.0, 1.0, -2.0], dtype=F64), torch.tensor([0.3, 0.6, 0.5], dtype=F64)
SMOOTH = [
    Log(high=30.0),
    Log1p(high=40.0),
    SquareRoot(low=0.3),
    YeoJohnson(0.3, low=-8.0, high=30.0),
    YeoJohnson(0.5, 1.0, 2.0, low=-4.0, high=20.0, least=0.0),
]
KINKED = [PiecewiseLinear([0.0, 1.0, 2.0, 5.0], [-2.0, 0.0, 0.5, 3.0], least=0.0), Log(high=2.0)]


def predictive(function, mean=MEAN, variance=VARIANCE):
    return TransformedPredictive(GaussianPredictive(mean, 0.25 * variance, 0.75 * variance), [function])


def grid(function, number):
    """Points and the density there, of one data point of the three."""
    low = 0.0 if function.least == 0.0 else -30.0
    # Denser near 0, where a density may be steep.
    points = low + (400.0 - low) * torch.linspace(0.0, 1.0, 100_001, dtype=F64) ** 3
    many = (MEAN[number].expand(len(points)), VARIANCE[number].expand(len(points)))
    return points, predictive(function, *many).log_prob(points).exp()


@pytest.mark.parametrize("function", SMOOTH + KINKED, ids=repr)
@pytest.mark.parametrize("number", [0, 2])
def test_the_density_has_the_mass_the_mean_and_the_variance(function, number):
    points, density = grid(function, number)
    mass, mean = torch.trapezoid(density, points), torch.trapezoid(density * points, points)
    variance = torch.trapezoid(density * points.square(), points) - mean.square()
    pred = predictive(function)
    std = variance.sqrt().item()
    atom = pred.cdf(torch.zeros(3, dtype=F64))[number] if function.least == 0.0 else 0.0
    assert mass.item() == pytest.approx(1.0 - float(atom), abs=2e-4)
    assert pred.mean[number].item() == pytest.approx(mean.item(), abs=(0.002 if atom < 1e-6 else 0.01) * std)
    assert pred.variance[number].item() == pytest.approx(variance.item(), rel=0.01 if atom < 1e-6 else 0.05)


@pytest.mark.parametrize("function", SMOOTH + KINKED, ids=repr)
def test_quantiles_are_where_the_distribution_function_is(function):
    levels = torch.tensor([1e-6, 0.025, 0.5, 0.9, 1 - 1e-6], dtype=F64)
    pred = predictive(function)
    found = pred.quantile(levels)
    assert found.shape == (5, 3)
    for level, row in zip(levels, found, strict=True):
        inside = row > function.least
        torch.testing.assert_close(pred.cdf(row)[inside], level.expand(3)[inside], rtol=1e-6, atol=1e-12)
        assert (pred.cdf(row) >= level * (1.0 - 1e-9)).all()
    torch.testing.assert_close(pred.quantile(0.5), pred.median)
    torch.testing.assert_close(pred.epistemic, 0.25 * pred.variance)
    torch.testing.assert_close(pred.epistemic + pred.aleatoric, pred.variance)


def test_a_logarithm_makes_it_log_normal():
    pred = predictive(Log())
    theirs = stats.lognorm(s=VARIANCE.sqrt().numpy(), scale=MEAN.exp().numpy())
    y = torch.tensor([0.7, 2.0, 0.2], dtype=F64)
    np.testing.assert_allclose(pred.log_prob(y), theirs.logpdf(y.numpy()), rtol=1e-12)
    np.testing.assert_allclose(pred.cdf(y), theirs.cdf(y.numpy()), rtol=1e-10)
    np.testing.assert_allclose(pred.quantile([0.1, 0.9]), theirs.ppf([[0.1], [0.9]]), rtol=1e-10)
    np.testing.assert_allclose(pred.mean, theirs.mean(), rtol=1e-9)
    np.testing.assert_allclose(pred.variance, theirs.var(), rtol=1e-6)
    assert pred.log_prob(torch.tensor([0.0, -1.0, 1.0], dtype=F64))[:2].tolist() == [-math.inf, -math.inf]


def test_a_variable_that_is_never_negative_is_never_predicted_to_be():
    """What the Gaussian has below 0 is at 0, also where all of it is."""
    far = torch.tensor([-1.0, -30.0, -5_000.0], dtype=F64)
    for function in (Log1p(high=50.0), SquareRoot(low=0.3), KINKED[0]):
        pred = predictive(function, mean=far)
        found = pred.quantile([1e-9, 0.5, 1.0 - 1e-9])
        assert (found >= 0).all()
        assert found[:, 2].tolist() == [0.0] * 3
        assert (pred.mean >= 0).all()
        assert (pred.variance >= 0).all()
        assert pred.cdf(torch.zeros(3, dtype=F64))[1:].tolist() == [1.0, 1.0]
        assert pred.log_prob(torch.tensor([-0.1, 0.1, 0.1], dtype=F64)).isfinite().tolist() == [False, True, True]
        assert pred.cdf(torch.full((3,), -0.1, dtype=F64)).tolist() == [0.0] * 3


def test_draws_follow_the_distribution():
    pred = predictive(SquareRoot(low=0.3))
    draws = pred.sample(40_000, seed=1)
    level = pred.cdf(pred.quantile(0.3))  # more than 0.3 where 0 is likelier than that
    z = ((draws <= pred.quantile(0.3)).double().mean(0) - level) / (level * (1.0 - level) / 40_000).sqrt()
    assert z.abs().max() < 4
    z = (draws.mean(0) - pred.mean) / (pred.variance / 40_000).sqrt()
    assert z.abs().max() < 4
    assert torch.equal(draws, pred.sample(40_000, seed=1))


def test_every_target_has_its_own_function():
    mean = torch.stack([MEAN, MEAN + 1.0], dim=1)
    variance = torch.stack([VARIANCE, 2.0 * VARIANCE], dim=1)
    functions = [Log(), YeoJohnson(0.3)]
    both = TransformedPredictive(GaussianPredictive(mean, 0.5 * variance, 0.5 * variance), functions)
    y = torch.tensor([[1.0, -2.0], [2.0, 0.5], [0.3, 3.0]], dtype=F64)
    alone = [
        TransformedPredictive(GaussianPredictive(mean[:, k], variance[:, k], 0.0 * variance[:, k]), [functions[k]])
        for k in range(2)
    ]
    torch.testing.assert_close(both.log_prob(y), sum(alone[k].log_prob(y[:, k]) for k in range(2)))
    assert both.quantile([0.1, 0.5, 0.9]).shape == (3, 3, 2)
    for k in range(2):
        torch.testing.assert_close(both.mean[:, k], alone[k].mean)
        torch.testing.assert_close(both.cdf(y)[:, k], alone[k].cdf(y[:, k]))


def test_crps_by_quantiles():
    base = GaussianPredictive(MEAN, 0.25 * VARIANCE, 0.75 * VARIANCE)
    y = torch.tensor([0.3, 3.5, -2.0], dtype=F64)
    exact = metrics.predictive_crps(base, y)
    assert exact.mean().item() == pytest.approx(metrics.crps(MEAN, VARIANCE, y))
    torch.testing.assert_close(
        metrics.predictive_crps(TransformedPredictive(base, [Identity()]), y), exact, rtol=2e-3, atol=0.0
    )
    pred = predictive(Log(high=30.0))
    draws = pred.sample(20_000, seed=0)
    gini = (draws - draws.roll(1, 0)).abs().mean(0)
    expected = (draws - y.clamp_min(0.1)).abs().mean(0) - 0.5 * gini
    torch.testing.assert_close(metrics.predictive_crps(pred, y.clamp_min(0.1)), expected, rtol=0.05, atol=0.0)
