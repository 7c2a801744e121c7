"""Transforms of skewed targets, how they are chosen, and predictions in the units of the targets."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.preprocessing import PowerTransformer

import bayesadam as ba
from bayesadam.functional.monotone import Identity
from bayesadam.predictive import GaussianPredictive, TransformedPredictive
from bayesadam.sklearn import BayesianMLPRegressor, load_estimator
from bayesadam.tables.estimators.choice import choose
from bayesadam.tables.estimators.target_transform import NAMES, fitted

pytestmark = pytest.mark.usefixtures("few_trees")
QUICK = {"members": 4, "hidden": (10,), "epochs": 150, "lr": 0.03, "random_state": 0}
TINY = {"members": 2, "hidden": (4,), "epochs": 5, "random_state": 0}
SKEWED = ("log", "log1p", "sqrt", "yeo-johnson", "quantile")


@pytest.fixture(scope="module")
def amounts():
    """Positive amounts with noise that is proportional to them: ``(x, y, median)`` of 400 rows."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1.0, 1.0, (400, 2))
    median = 1_000.0 * np.exp(1.5 * x[:, 0])
    return x, median * np.exp(0.5 * generator.standard_normal(400)), median


@pytest.fixture(scope="module")
def model(amounts):
    x, y, _ = amounts
    return BayesianMLPRegressor(**QUICK).fit(x[:300], y[:300])


def chosen(x, y, weight=None, groups=None):
    scales = (np.zeros(x.shape[1]), np.ones(x.shape[1]))
    return choose(x, scales, y, weight, groups)


class TestChoice:
    def test_amounts_are_taken_by_their_logarithm(self, model, amounts):
        x, y, _ = amounts
        assert model.target_transform_ in ("log", "log1p")
        assert isinstance(model.likelihood_, ba.Gaussian)
        plain = clone(model).set_params(target_transform="none").fit(x[:300], y[:300])
        new = torch.from_numpy(y[300:])
        gain = model.predictive(x[300:]).log_prob(new) - plain.predictive(x[300:]).log_prob(new)
        assert gain.mean() > 0.1
        assert (plain.predict_interval(x[300:])[:, 0] < 0).mean() > 0.1
        assert (model.predict_interval(x[300:], 0.999) > 0).all()

    def test_gaussian_targets_stay_and_so_does_their_fit(self, curve):
        """To the last bit: the choice draws no number of the training."""
        x, y = curve
        options = {**QUICK, "epochs": 20}
        model = BayesianMLPRegressor(**options).fit(x, y)
        assert model.target_transform_ == "none"
        plain = BayesianMLPRegressor(target_transform=None, **options).fit(x, y)
        np.testing.assert_array_equal(model.predict(x, True), plain.predict(x, True))
        assert isinstance(model.predictive(x), GaussianPredictive)

    def test_it_is_the_same_in_every_unit_and_with_repeated_weights(self, amounts):
        x, y, _ = amounts
        for unit in (1e-3, 1e6):
            assert chosen(x, unit * y[:, None]) in (["log"], ["log1p"])
        assert chosen(x[:40], y[:40, None]) == ["none"]  # so few rows do not tell
        assert chosen(x, y[:, None], np.full(400, 3.0)) == chosen(x, y[:, None])

    @pytest.mark.parametrize("share", [0.2, 0.9])
    def test_targets_that_pile_up_at_the_smallest_value_stay(self, share):
        """A steep transform describes the pile well, and its means are far from those of the targets."""
        generator = np.random.default_rng(2)
        x = generator.uniform(-1.0, 1.0, (250, 2))
        amount = np.exp(7.0 + 0.5 * x[:, 0] + generator.standard_normal(250))
        y = np.where(generator.random(250) < share, 0.0, amount)
        assert chosen(x, y[:, None]) == ["none"]
        assert chosen(x, (y > 0).astype(float)[:, None]) == ["none"]
        assert chosen(x, -y[:, None]) == ["none"]

    @pytest.mark.parametrize("rows", [60, 3_000])
    def test_one_large_group_and_a_tiny_one_are_no_choice(self, rows):
        """Of 3,000 rows, the tiny group may be outside of those that are used."""
        x = np.random.default_rng(0).standard_normal((rows, 2))
        groups = np.zeros(rows, dtype=np.int64)
        groups[np.random.default_rng(0).permutation(rows)[-1]] = 1
        assert chosen(x, np.exp(x[:, :1]), groups=groups) == ["none"]

    def test_a_single_wrong_target_does_not_decide(self):
        """Its gain is the mean gain and the error alike."""
        x = np.random.default_rng(0).standard_normal((300, 4))
        y = x[:, 0] + 0.3 * np.random.default_rng(1).standard_normal(300)
        y[17] = 1e4
        assert chosen(x, y[:, None]) == ["yeo-johnson"]

    def test_counts_may_be_transformed(self):
        """Their smallest value is common, but so are others."""
        generator = np.random.default_rng(3)
        x = generator.uniform(-1.0, 1.0, (400, 1))
        y = generator.poisson(np.exp(1.0 + 1.5 * x[:, 0])).astype(float)
        assert (y == 0).mean() > 0.05
        assert chosen(x, y[:, None]) != ["none"]

    def test_several_targets_have_their_own(self, amounts):
        x, y, _ = amounts
        normal = x[:, 0] + 0.1 * np.random.default_rng(1).standard_normal(400)
        first, second = chosen(x, np.stack([y, normal], axis=1))
        assert first in ("log", "log1p")
        assert second == "none"


class TestTargetsThatAreNotNegative:
    """So few rows that no transform is chosen."""

    X = np.random.default_rng(0).uniform(-1.0, 1.0, (45, 1))
    Y = np.maximum(X[:, 0] + np.random.default_rng(1).normal(0.5, 0.6, 45), 0.0)

    def test_quantiles_and_ends_are_not_either(self, tmp_path):
        model = BayesianMLPRegressor(**TINY).fit(self.X, self.Y)
        assert model.target_transform_ == "none"
        plain = BayesianMLPRegressor(target_transform=None, **TINY).fit(self.X, self.Y)
        for ends in (
            lambda m: m.predict_interval(self.X)[:, 0],
            lambda m: m.predict_interval(self.X, method="cross")[:, 0],
            lambda m: m.predict(self.X, quantiles=[0.01])[:, 0],
            lambda m: m.sample_y(self.X, 20).min(1),
        ):
            assert ends(plain).min() < 0.0
            np.testing.assert_array_equal(ends(model), np.maximum(ends(plain), 0.0))
        np.testing.assert_array_equal(model.predict(self.X, True), plain.predict(self.X, True))
        new = torch.full((45,), -0.1, dtype=torch.float64)
        assert torch.equal(model.predictive(self.X).log_prob(new), plain.predictive(self.X).log_prob(new))
        model.save(tmp_path)
        np.testing.assert_array_equal(load_estimator(tmp_path).predict_interval(self.X), model.predict_interval(self.X))
        both = model.fit(self.X, np.stack([self.Y, self.Y - 5.0], axis=1)).predict_interval(self.X)
        assert both[:, 0].min() == 0.0
        assert (both[:, 1, 0] < 0.0).all()


@pytest.mark.parametrize("name", SKEWED)
class TestEveryTransform:
    def test_predictions_are_in_the_targets_units(self, name, amounts):
        x, y, median = amounts
        model = BayesianMLPRegressor(target_transform=name, **QUICK).fit(x[:300], y[:300])
        assert model.target_transform_ == name
        pred = model.predictive(x[300:])
        assert isinstance(pred, TransformedPredictive)
        middle = pred.median.numpy()
        assert np.median(np.abs(np.log(middle / median[300:]))) < 0.35
        low, high = model.predict_interval(x[300:], 0.9).T
        assert np.mean((low <= y[300:]) & (y[300:] <= high)) == pytest.approx(0.9, abs=0.1)
        assert (low >= 0).all()
        mean, std = model.predict(x[300:], return_std=True)
        np.testing.assert_allclose(mean, pred.mean.numpy())
        np.testing.assert_allclose(std, pred.variance.sqrt().numpy())
        draws = model.sample_y(x[300:], 4_000, random_state=1)
        assert (np.abs(draws.mean(1) - mean) < 5 * std / 4_000**0.5).all()
        np.testing.assert_allclose(
            model.predict(x[300:], quantiles=[0.05, 0.95]), np.stack([low, high], axis=1), rtol=1e-12
        )

    def test_files_keep_it(self, name, amounts, tmp_path):
        x, y, _ = amounts
        model = BayesianMLPRegressor("vadam", target_transform=name, mc_samples=4, **TINY).fit(x, y)
        model.save(tmp_path)
        read = load_estimator(tmp_path)
        for call in (
            lambda m: np.stack(m.predict(x, return_std=True)),
            lambda m: m.predict_interval(x, 0.9),
            lambda m: m.predict_interval(x, 0.9, method="cross"),
            lambda m: m.predictive(x).log_prob(torch.from_numpy(y)).numpy(),
        ):
            np.testing.assert_array_equal(call(read), call(model))


def test_the_held_out_nll_is_in_the_targets_units(amounts):
    """It is about that of the log-normal noise of amounts of this size."""
    x, y, median = amounts
    seen = []
    BayesianMLPRegressor(target_transform="log", **QUICK).fit(x, y, on_epoch=seen.append)
    expected = np.mean(np.log(median * 0.5 * np.sqrt(2.0 * np.pi)) + 0.5)
    assert seen[-1].held_out_nll == pytest.approx(expected, abs=0.25)


class TestFitted:
    def test_the_power_is_that_of_scikit_learn(self):
        values = np.random.default_rng(0).gamma(1.5, 2.0, 300)
        standard = (values - values.mean()) / values.std()
        theirs = PowerTransformer("yeo-johnson").fit(standard[:, None]).lambdas_[0]
        assert fitted("yeo-johnson", 100.0 * values + 7.0).power == pytest.approx(theirs, abs=1e-4)

    def test_weights_are_repetitions(self):
        values, times = np.random.default_rng(0).gamma(1.5, 2.0, 300), np.arange(300) % 4
        kept = times > 0
        ours = fitted("yeo-johnson", values[kept], times[kept].astype(float))
        assert ours.power == pytest.approx(fitted("yeo-johnson", np.repeat(values, times)).power, abs=1e-4)
        heavy = fitted("quantile", values, np.where(values > 5.0, 1.0, 1e-9))
        assert heavy.inverse(torch.zeros(1, dtype=torch.float64)).item() == pytest.approx(
            np.median(values[values > 5.0]), rel=0.05
        )

    def test_many_equal_targets(self):
        values = np.concatenate([np.zeros(300), np.random.default_rng(0).gamma(2.0, 2.0, 200)])
        for name in ("log1p", "sqrt", "yeo-johnson", "quantile"):
            function = fitted(name, values)
            assert function.log_slope(torch.from_numpy(values)).isfinite().all()
            assert function.least == 0.0

    @pytest.mark.parametrize("sign", [-1.0, 1.0])
    def test_one_deviation_of_a_flat_power_transform_is_at_most_the_range(self, sign):
        """The powers of very skewed targets have bounds, which predictions of means would reach."""
        values = sign * np.exp(2.0 * np.random.default_rng(0).standard_normal(200))
        function = fitted("yeo-johnson", values)
        assert not 0.0 <= function.power <= 2.0
        known = function(torch.from_numpy(values))
        reached = function.inverse(torch.linspace(-9.0, 9.0, 99, dtype=torch.float64) * known.std(correction=0))
        assert reached.diff().max().item() == pytest.approx(18 / 98 * np.ptp(values), rel=0.03)
        mild = np.random.default_rng(0).random(300) ** 2
        assert fitted("yeo-johnson", mild).high == 2.0 * mild.max() - mild.min()

    @pytest.mark.parametrize("name", NAMES)
    def test_a_constant_target_is_left_as_it_is(self, name):
        assert isinstance(fitted(name, np.full(10, 3.0)), Identity)
