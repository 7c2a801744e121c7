"""Scorers, pipelines, transformed targets and scikit-learn's metadata routing."""

from functools import partial

import numpy as np
import pytest
import sklearn
import torch
from sklearn.compose import TransformedTargetRegressor as Theirs
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler

from bayesadam.sklearn import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    TransformedTargetRegressor,
    interval_score,
    neg_crps,
    neg_nll,
)

QUICK = {"members": 4, "hidden": (10,), "epochs": 60, "lr": 0.03, "random_state": 0, "target_transform": "none"}
TINY = {**QUICK, "members": 2, "epochs": 3}


@pytest.fixture(scope="module")
def amounts():
    generator = np.random.default_rng(0)
    x = generator.uniform(-1.0, 1.0, (150, 2))
    return x, np.exp(6.0 + 1.5 * x[:, 0] + 0.5 * generator.standard_normal(150))


@pytest.fixture(scope="module")
def model(curve):
    return BayesianMLPRegressor(**QUICK).fit(*curve)


def test_scores_are_those_of_the_gaussian(model, curve):
    x, y = curve
    mean, std = model.predict(x, return_std=True)
    pred = torch.distributions.Normal(torch.from_numpy(mean), torch.from_numpy(std))
    assert neg_nll(model, x, y) == pytest.approx(pred.log_prob(torch.from_numpy(y)).mean().item())
    z = (y - mean) / std
    cdf, pdf = torch.special.ndtr(torch.from_numpy(z)).numpy(), np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    assert neg_crps(model, x, y) == pytest.approx(-np.mean(std * (z * (2 * cdf - 1) + 2 * pdf - 1 / np.sqrt(np.pi))))
    low, high = model.predict_interval(x, 0.5).T
    missed = np.where(y < low, low - y, np.where(y > high, y - high, 0.0))
    assert interval_score(model, x, y, coverage=0.5) == pytest.approx(-np.mean(high - low + 4.0 * missed))


def test_scores_of_a_mixture(curve):
    x, y = curve
    model = BayesianMLPRegressor(likelihood="student_t", **TINY).fit(x, y)
    draws = model.sample_y(x, 2_000)
    expected = np.abs(draws - y[:, None]).mean() - 0.5 * np.abs(draws - np.roll(draws, 1, axis=1)).mean()
    assert neg_crps(model, x, y) == pytest.approx(-expected, rel=0.1)
    assert np.isfinite([neg_nll(model, x, y), interval_score(model, x, y)]).all()


def test_reversed_arrays_are_as_their_copies(curve):
    x, y = curve[0][:60], curve[1][:60]
    back, copies = (x[::-1], y[::-1]), (x[::-1].copy(), y[::-1].copy())
    found, expected = (BayesianMLPRegressor(members=2, epochs=2, random_state=0).fit(*rows) for rows in (back, copies))
    np.testing.assert_array_equal(found.predict(x), expected.predict(x))
    for score in (neg_nll, neg_crps):
        assert score(found, *back) == score(expected, *copies)


def test_searches_and_pipelines_are_scored(curve):
    x, y = curve
    pipe = make_pipeline(StandardScaler(), BayesianMLPRegressor(**TINY))
    grid = {"bayesianmlpregressor__epochs": [1, 60]}
    search = GridSearchCV(pipe, grid, scoring={"nll": neg_nll, "crps": neg_crps}, refit="nll", cv=2).fit(x, y)
    assert search.best_params_ == {"bayesianmlpregressor__epochs": 60}
    assert neg_nll(search, x, y) == neg_nll(search.best_estimator_, x, y)
    half = cross_val_score(pipe, x, y, scoring=partial(interval_score, coverage=0.5), cv=2)
    assert (half < 0).all()
    last = BayesianMLPRegressor(**TINY).fit((x - x.mean(0)) / x.std(0), y)
    assert neg_crps(pipe.fit(x, y), x, y) == pytest.approx(neg_crps(last, (x - x.mean(0)) / x.std(0), y), rel=1e-4)


@pytest.mark.parametrize("scorer", [neg_nll, neg_crps, interval_score])
def test_what_has_no_predictive_has_no_score(scorer, model, curve, blobs):
    x, y = curve
    with pytest.raises(ValueError, match=r"^estimator must have .*, got LinearRegression\(\)$"):
        scorer(LinearRegression().fit(x, y), x, y)
    with pytest.raises(ValueError, match=r"^estimator must have .*, got BayesianMLPClassifier"):
        scorer(BayesianMLPClassifier(members=2, epochs=1).fit(*blobs), *blobs)
    with pytest.raises(ValueError, match="must be of"):
        scorer(model, x, y[:-1])


class TestTransformedTargets:
    def test_it_is_as_the_regressors_own_transform(self, amounts):
        x, y = amounts
        outside = TransformedTargetRegressor(BayesianMLPRegressor(**QUICK), func=np.log, inverse_func=np.exp).fit(x, y)
        inside = BayesianMLPRegressor(**{**QUICK, "target_transform": "log"}).fit(x, y)
        for ours, theirs in zip(outside.predict(x, return_std=True), inside.predict(x, return_std=True), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0.01)
        np.testing.assert_allclose(outside.predict(x), inside.predict(x), rtol=0.01)
        np.testing.assert_allclose(outside.predict_interval(x, 0.8), inside.predict_interval(x, 0.8), rtol=1e-3)
        assert interval_score(outside, x, y) == pytest.approx(interval_score(inside, x, y), rel=1e-3)
        assert neg_crps(outside, x, y) == pytest.approx(neg_crps(inside, x, y), rel=1e-3)
        with pytest.raises(ValueError, match=r"^coverage must be in \(0, 1\), got 1$"):
            outside.predict_interval(x, 1)
        with pytest.raises(ValueError, match=r"^return_std must be False with quantiles=\[0.5\], got True$"):
            outside.predict(x, return_std=True, quantiles=[0.5])

    def test_transformers_and_several_targets(self, amounts):
        x, y = amounts
        both = np.stack([y, 2.0 * y], axis=1)
        regressor = make_pipeline(StandardScaler(), BayesianMLPRegressor(**TINY))
        model = TransformedTargetRegressor(regressor, transformer=PowerTransformer("box-cox"))
        mean, std = model.fit(x, both).predict(x, return_std=True)
        assert mean.shape == std.shape == (150, 2)
        assert model.predict_interval(x).shape == (150, 2, 2)
        assert model.fit(x, y).predict(x, quantiles=[0.1, 0.5, 0.9]).shape == (150, 3)

    @pytest.mark.parametrize("func", [np.negative, np.reciprocal, lambda y: (y - 400.0) ** 2])
    def test_a_transform_that_is_not_increasing(self, amounts, func):
        """Its quantiles would be in another order."""
        model = TransformedTargetRegressor(
            BayesianMLPRegressor(**TINY), func=func, inverse_func=func, check_inverse=False
        )
        with pytest.raises(
            ValueError, match="^the transform of the targets must be increasing, got FunctionTransformer"
        ):
            model.fit(*amounts)

    def test_scikit_learns_own_passes_quantiles_on(self, amounts):
        x, y = amounts
        theirs = Theirs(BayesianMLPRegressor(**TINY), func=np.log, inverse_func=np.exp).fit(x, y)
        ours = TransformedTargetRegressor(BayesianMLPRegressor(**TINY), func=np.log, inverse_func=np.exp).fit(x, y)
        levels = [0.025, 0.975]
        np.testing.assert_allclose(theirs.predict(x, quantiles=levels), ours.predict(x, quantiles=levels))


class TestRouting:
    @pytest.fixture(autouse=True)
    def routing(self):
        with sklearn.config_context(enable_metadata_routing=True):
            yield

    def test_a_pipeline_passes_what_was_asked_for(self, curve):
        x, y = curve
        last = BayesianMLPRegressor(**TINY).set_predict_request(return_std=True, quantiles=True)
        pipe = make_pipeline(StandardScaler(), last).fit(x, y)
        mean, std = pipe.predict(x, return_std=True)
        scaled = pipe[:-1].transform(x)
        for ours, theirs in zip((mean, std), pipe[-1].predict(scaled, return_std=True), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(
            pipe.predict(x, quantiles=[0.025, 0.975]), pipe[-1].predict(scaled, quantiles=[0.025, 0.975])
        )

    def test_weights_reach_the_fit(self, curve):
        x, y = curve
        weight = np.linspace(0.1, 2.0, len(y))
        last = BayesianMLPRegressor(**TINY).set_fit_request(sample_weight=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), last)
        pipe.fit(x, y, sample_weight=weight)
        direct = BayesianMLPRegressor(**TINY).fit(pipe[:-1].transform(x), y, sample_weight=weight)
        np.testing.assert_array_equal(pipe.predict(x), direct.predict(pipe[:-1].transform(x)))

    def test_a_transformed_target_inside_a_pipeline(self, amounts):
        x, y = amounts
        regressor = BayesianMLPRegressor(**TINY).set_predict_request(quantiles=True)
        inner = TransformedTargetRegressor(regressor, func=np.log, inverse_func=np.exp)
        pipe = make_pipeline(StandardScaler(), inner.set_predict_request(return_std=True)).fit(x, y)
        mean, std = pipe.predict(x, return_std=True)
        assert mean.shape == std.shape == (150,)
        assert (pipe[-1].predict_interval(pipe[:-1].transform(x)) > 0).all()
        theirs = make_pipeline(StandardScaler(), Theirs(regressor, func=np.log, inverse_func=np.exp)).fit(x, y)
        assert theirs.predict(x, quantiles=[0.1, 0.9]).shape == (150, 2)
