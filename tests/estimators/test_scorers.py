"""Scorers, pipelines, transformed targets and scikit-learn's metadata routing."""

from functools import partial

import numpy as np
import pytest
import sklearn
import torch
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bayesadam.sklearn import BayesianMLPRegressor, interval_score, neg_crps, neg_nll

pytestmark = pytest.mark.usefixtures("few_trees")
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


class TestRouting:
    @pytest.fixture(autouse=True)
    def routing(self):
        with sklearn.config_context(enable_metadata_routing=True):
            yield

    def test_a_pipeline_passes_what_was_asked_for(self, curve):
        x, y = curve
        weight = np.linspace(0.1, 2.0, len(y))
        last = BayesianMLPRegressor(**TINY).set_predict_request(return_std=True, quantiles=True)
        pipe = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False), last.set_fit_request(sample_weight=True)
        ).fit(x, y, sample_weight=weight)
        direct = BayesianMLPRegressor(**TINY).fit(pipe[:-1].transform(x), y, sample_weight=weight)
        np.testing.assert_array_equal(pipe.predict(x), direct.predict(pipe[:-1].transform(x)))
        mean, std = pipe.predict(x, return_std=True)
        scaled = pipe[:-1].transform(x)
        np.testing.assert_array_equal((mean, std), pipe[-1].predict(scaled, return_std=True))
        np.testing.assert_array_equal(
            pipe.predict(x, quantiles=[0.025, 0.975]), pipe[-1].predict(scaled, quantiles=[0.025, 0.975])
        )
