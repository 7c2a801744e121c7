"""Ridge regressions beside the networks of a regression, and their weights."""

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from sklearn.linear_model import RidgeCV

from bayesadam.sklearn import BayesianMLPRegressor
from bayesadam.sklearn.calibration import PRIOR, mean_weights
from bayesadam.sklearn.linear import ridge_parts
from bayesadam.sklearn.plan import plan
from bayesadam.sklearn.ridge import PENALTIES, ridge

TINY = {"members": 4, "hidden": (6,), "epochs": 60, "random_state": 0}


@pytest.fixture(scope="module")
def additive():
    """Targets that are a sum of functions of skewed inputs: ``(inputs, targets)``."""
    generator = np.random.default_rng(0)
    logs = generator.standard_normal((240, 3))
    y = logs[:, 0] + np.abs(logs[:, 1]) + 0.2 * generator.standard_normal(240)
    return np.exp(2.0 * logs), y


@pytest.fixture(scope="module")
def model(additive):
    return BayesianMLPRegressor(**TINY).fit(*additive)


def standardised(values):
    return (values - values.mean(0)) / values.std(0)


@pytest.mark.parametrize("features", [20, 80])
def test_the_penalty_is_that_of_leave_one_out(features):
    generator = np.random.default_rng(1)
    design = generator.standard_normal((50, features))
    values = np.stack([design[:, 0] + 3.0 * generator.standard_normal(50), design[:, 1]], axis=1)
    weight = generator.uniform(0.5, 2.0, 50)
    found, error = ridge(design, values, weight)
    share = np.sqrt(weight / weight.mean())[:, None]
    ones = share * np.concatenate([np.ones((50, 1)), design], axis=1)
    reference = RidgeCV(PENALTIES, fit_intercept=False, alpha_per_target=True).fit(ones, share * values)
    np.testing.assert_allclose(found, reference.coef_.T, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(error, -reference.best_score_, rtol=1e-6)


class TestParts:
    def test_rows_are_predicted_by_fits_that_have_not_seen_them(self, additive):
        x, y = standardised(additive[0]), standardised(additive[1])[:, None]
        divided = plan(240, 4, np.arange(240), 0)
        moved = y.copy()
        fold = divided.fold == 1
        moved[fold] += 100.0
        for (_, before), (_, after) in zip(
            *(ridge_parts(x, t, np.ones(240), divided) for t in (y, moved)), strict=True
        ):
            np.testing.assert_array_equal(before[fold], after[fold])
            assert np.abs(before - after)[~fold].mean() > 5.0

    def test_pieces_describe_skewed_inputs(self, additive):
        x, y = standardised(additive[0]), standardised(additive[1])[:, None]
        (_, linear), (part, found) = ridge_parts(x, y, np.ones(240), plan(240, 4, np.arange(240), 0))
        assert np.mean((found - y) ** 2) < 0.4 * np.mean((linear - y) ** 2)
        np.testing.assert_array_equal(
            part.outputs(100.0 * np.abs(x).max(0)[None]), part.outputs(np.abs(x).max(0)[None])
        )


class TestWeights:
    def test_have_the_least_squared_error(self):
        generator = np.random.default_rng(2)
        models = generator.standard_normal((3, 400))
        target = 0.5 * models[0] + 0.3 * models[1] - 0.4 * models[2] + generator.standard_normal(400)
        weight = generator.uniform(0.5, 2.0, 400)
        share = weight / weight.sum()
        prior = PRIOR * (share @ (models[0] - target) ** 2) * (weight**2).sum() / weight.sum() ** 2
        rows = np.concatenate([(np.sqrt(share) * models).T, np.sqrt(prior) * np.eye(3)])
        values = np.concatenate([np.sqrt(share) * target, np.sqrt(prior) * np.eye(3)[0]])
        expected = lsq_linear(rows, values, bounds=(0.0, np.inf), tol=1e-12).x
        found = mean_weights(models, target, weight, 0.0)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert found[2] == 0.0

    def test_are_those_of_the_whole_ensemble_although_few_members_predict_a_row(self):
        generator = np.random.default_rng(3)
        truth, rows = generator.standard_normal(20_000), np.ones(20_000)
        target = truth + 0.3 * generator.standard_normal(20_000)
        members = truth + generator.standard_normal((20, 20_000))
        other = truth + 0.5 * generator.standard_normal(20_000)
        whole = mean_weights(np.stack([members.mean(0), other]), target, rows, 0.0)
        few = np.stack([members[:2].mean(0), other])
        np.testing.assert_allclose(mean_weights(few, target, rows, 1 / 2 - 1 / 20), whole, atol=0.03)
        assert np.abs(mean_weights(few, target, rows, 0.0) - whole).max() > 0.3

    def test_earlier_ones_count_as_rows(self):
        generator = np.random.default_rng(4)
        models = generator.standard_normal((2, 10))
        before = np.array([0.2, 0.8])
        found = mean_weights(models, models[0], np.ones(10), 0.0, before)
        assert np.abs(found - before).max() < 0.3
        many = generator.standard_normal((2, 10_000))
        np.testing.assert_allclose(mean_weights(many, many[0], np.ones(10_000), 0.0, before), [1.0, 0.0], atol=0.01)


class TestRegressor:
    def test_the_mean_is_the_weighted_sum(self, model, additive):
        inputs = model._inputs(additive[0])
        network, _, _ = model._moments(
            np.stack([model._member(inputs, member) for member in range(4)], axis=1), np.ones((4, 1, 1), dtype=bool)
        )
        share, *others = model.calibration_["linear"][:, 0]
        expected = share * network + sum(
            weight * part.outputs(inputs.numpy()) for weight, part in zip(others, model._linear, strict=True)
        )
        np.testing.assert_allclose(model._standardised(inputs)[0], expected, rtol=1e-6, atol=1e-7)
        assert others[1] > 0.3

    def test_the_variance_is_that_of_rows_they_have_not_seen(self):
        generator = np.random.default_rng(6)
        x = generator.standard_normal((1_150, 60))
        y = np.abs(x[:, :4]).sum(1) + 0.3 * generator.standard_normal(1_150)
        model = BayesianMLPRegressor(**TINY, target_transform=None).fit(x[:150], y[:150])
        assert model.calibration_["linear"][1:].max() > 0.3
        mean, std = model.predict(x[150:], return_std=True)
        errors = ((mean - y[150:]) / std) ** 2
        assert 0.7 < errors.mean() < 1.3
        left_out = model._y_std[0] * model._left_out.scores
        assert 0.8 < np.mean(left_out**2) / np.mean((mean - y[150:]) ** 2) < 1.6

    @pytest.mark.parametrize("options", [{"calibrate": False}, {"noise": 0.2}, {"likelihood": "student_t"}])
    def test_where_there_are_none(self, options, additive):
        model = BayesianMLPRegressor(**TINY, **options).fit(*additive)
        assert model._linear == []
        np.testing.assert_array_equal(model.calibration_["linear"], [[1.0]])
