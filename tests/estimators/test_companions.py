"""Models of other kinds that complement the networks: regressions and trees, and their weights."""

import json

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from scipy.special import log_softmax
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.linear_model import Ridge

from bayesadam.sklearn import BayesianMLPRegressor
from bayesadam.tables.estimators import linear
from bayesadam.tables.estimators.calibration import PRIOR, mean_weights
from bayesadam.tables.estimators.companions import companions
from bayesadam.tables.estimators.ensemble import _member_moments
from bayesadam.tables.estimators.linear import linear_parts
from bayesadam.tables.estimators.loading import part_of
from bayesadam.tables.estimators.plan import plan
from bayesadam.tables.estimators.rows import TrainingRows
from bayesadam.tables.estimators.storage import record
from bayesadam.tables.estimators.trees import BOOSTING, TreesPart, tree_parts

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


def rows(x, y, weight=None):
    weight = np.ones(len(x)) if weight is None else weight
    return TrainingRows(torch.tensor(x), torch.tensor(y), weight, plan(len(x), 4, np.arange(len(x)), 0))


class TestParts:
    def test_rows_are_predicted_by_fits_that_have_not_seen_them(self, additive):
        x, y = standardised(additive[0]), standardised(additive[1])[:, None]
        moved = y.copy()
        fold = rows(x, y).plan.fold == 1
        moved[fold] += 100.0
        found = [companions(rows(x, targets)) for targets in (y, moved)]
        assert len(found[0]) == 3
        for (_, before), (_, after) in zip(*found, strict=True):
            np.testing.assert_allclose(before[fold], after[fold], atol=1e-9)
            assert np.abs(before - after)[~fold].mean() > 0.3

    @pytest.mark.parametrize("kind", ["numbers", "classes"])
    def test_a_record_gives_the_same_outputs(self, additive, kind):
        x, y = standardised(additive[0]), standardised(additive[1])[:, None]
        classes = 3 if kind == "classes" else 0
        for part, _ in companions(rows(x, np.digitize(y[:, 0], [-0.5, 0.5]) if classes else y), classes):
            state = json.loads(json.dumps(record(part)))
            sizes = {"D": x.shape[1], "K": part.outputs(x).shape[1]}
            np.testing.assert_array_equal(part_of(state, sizes).outputs(x), part.outputs(x))

    @pytest.mark.parametrize(
        ("left", "right", "root"),
        [
            ([1, 0, 2], [2, 1, 2], [0]),  # a cycle
            ([1, 1, 2], [2, 1, 1], [0]),  # a child before its node
            ([1, 1, 2], [2, 1, 2], [0, 1]),  # a child in another tree
            ([1, 1, 2], [2, 1, 2], [1]),  # a node in no tree
            (range(1, 99), range(1, 99), [0]),  # more nodes than the trees have that are fitted
        ],
    )
    def test_trees_without_an_end(self, left, right, root):
        count = len(left)
        values = np.zeros(count)
        with pytest.raises(ValueError, match="^(trees must have from 1 to 15 nodes|children must come after)"):
            TreesPart(
                np.zeros(count, np.int64),
                values,
                np.array(left),
                np.array(right),
                values,
                np.array(root),
                np.zeros(len(root), np.int64),
                np.zeros(1),
            )

    def test_numbers_of_each_fold_are_those_of_a_ridge_regression_to_the_others(self, additive, monkeypatch):
        monkeypatch.setattr(linear, "PENALTIES", np.array([3.0]))
        x, y = standardised(additive[0]), np.stack([standardised(additive[1]), additive[0][:, 0]], axis=1)
        weight = np.random.default_rng(1).uniform(0.5, 1.5, len(x))
        data = rows(x, y, weight / weight.mean())
        (part, unseen), _ = linear_parts(data, 0)
        spread = (x - x.min(0)) / np.ptp(x, axis=0)  # one piece for every input
        features = (spread - spread.mean(0)) / spread.std(0)
        for at in [data.plan.fold == fold for fold in range(10)]:
            model = Ridge(3.0).fit(features[~at], y[~at], data.weight[~at])
            np.testing.assert_allclose(unseen[at], model.predict(features[at]), rtol=1e-8, atol=1e-8)
        model = Ridge(3.0).fit(features, y, data.weight)
        np.testing.assert_allclose(part.outputs(x), model.predict(features), rtol=1e-8, atol=1e-8)

    def test_the_penalty_has_the_least_score_of_generalised_cross_validation(self):
        generator = np.random.default_rng(0)
        x = generator.standard_normal((60, 8))
        y = np.stack([x @ np.ones(8), x[:, 0] + 2.0 * generator.standard_normal(60)], axis=1)
        (part, _), *_ = linear_parts(rows(x, y), 0)
        features, chosen = (x - x.mean(0)) / x.std(0), []
        for output, own in enumerate(y.T):
            scores = []
            for penalty in linear.PENALTIES:
                inverse = np.linalg.inv(features.T @ features + penalty * np.eye(8))
                hat = features @ inverse @ features.T + 1.0 / 60
                scores.append(np.sum((own - hat @ own) ** 2) / (60 - np.trace(hat)) ** 2)
            chosen.append(int(np.argmin(scores)))
            best = Ridge(linear.PENALTIES[chosen[-1]]).fit(features, own).predict(features)
            np.testing.assert_allclose(part.outputs(x)[:, output], best, rtol=1e-8, atol=1e-8)
        assert chosen[0] < chosen[1]

    def test_pieces_describe_skewed_inputs(self, additive):
        x, y = standardised(additive[0]), standardised(additive[1])[:, None]
        (_, linear), (_, found) = linear_parts(rows(x, y), 0)
        assert np.mean((found - y) ** 2) < 0.4 * np.mean((linear - y) ** 2)

    def test_the_trend_of_a_linear_regression_continues_for_one_range(self):
        x = np.random.default_rng(0).uniform(-1.0, 1.0, (100, 2))
        y = x @ [[2.0], [-1.0]]
        (part, _), _ = linear_parts(rows(x, y), 0)
        low, high = x.min(0), x.max(0)
        beyond = np.stack([high + 0.9 * (high - low), low - 0.9 * (high - low), [high[0] + 0.5, 0.0]])
        np.testing.assert_allclose(part.outputs(beyond), beyond @ [[2.0], [-1.0]], atol=1e-2)
        farthest = high + (high - low)
        np.testing.assert_allclose(part.outputs(farthest[None] + 100.0), part.outputs(farthest[None]))


class TestTrees:
    def test_numbers_are_those_of_scikit_learn(self, additive):
        x, y = standardised(additive[0]), np.stack([standardised(additive[1]), np.sin(additive[0][:, 0])], axis=1)
        ((part, unseen),) = tree_parts(rows(x, y), 0)
        found = part.outputs(x)
        for output, own in enumerate(y.T):
            model = GradientBoostingRegressor(**BOOSTING).fit(x.astype(np.float32), own)
            np.testing.assert_allclose(found[:, output], model.predict(x), rtol=1e-9)
        assert np.mean((unseen[:, 0] - y[:, 0]) ** 2) < 0.5

    @pytest.mark.parametrize("classes", [2, 3])
    def test_classes_are_those_of_scikit_learn(self, additive, classes):
        x, y = standardised(additive[0]), np.digitize(additive[1], [0.0, 1.0][: classes - 1])
        ((part, unseen),) = tree_parts(rows(x, y), classes)
        found = log_softmax(part.outputs(x), axis=1)
        model = GradientBoostingClassifier(**BOOSTING).fit(x, y)
        np.testing.assert_allclose(found, np.log(model.predict_proba(x)), rtol=1e-9)
        assert (unseen.argmax(1) == y).mean() > 0.6

    def test_a_class_that_a_fold_does_not_have(self, additive):
        labels = (additive[1] > 0.5).astype(int)
        labels[7] = 2
        ((_, unseen),) = tree_parts(rows(additive[0], labels), 3)
        assert np.isfinite(unseen).all()
        assert unseen[7, 2] < np.log(0.05)

    def test_where_there_are_none(self, additive):
        assert list(tree_parts(rows(additive[0][:90], additive[1][:90, None]), 0)) == []
        assert list(tree_parts(rows(additive[0], (np.arange(240) == 7).astype(int)), 2)) == []


class TestWeights:
    def test_have_the_least_squared_error(self):
        generator = np.random.default_rng(2)
        models = generator.standard_normal((3, 400))
        target = 0.5 * models[0] + 0.3 * models[1] - 0.4 * models[2] + generator.standard_normal(400)
        weight = generator.uniform(0.5, 2.0, 400)
        share = weight / weight.sum()
        found = mean_weights(models, target, weight, 0.0)
        prior = PRIOR * (share @ (found @ models - target) ** 2) / weight.sum()
        rows = np.concatenate([(np.sqrt(share) * models).T, np.sqrt(prior) * np.eye(3)])
        values = np.concatenate([np.sqrt(share) * target, np.sqrt(prior) * np.eye(3)[0]])
        expected = lsq_linear(rows, values, bounds=(0.0, np.inf), tol=1e-12).x
        np.testing.assert_allclose(found, expected, atol=1e-4)
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


class TestRegressor:
    def test_the_mean_is_the_weighted_sum(self, model, additive):
        inputs = model._inputs(additive[0])
        network = np.mean([_member_moments(model._predictions(inputs, member))[0] for member in range(4)], axis=0)
        share, *others = model.calibration_["weights"][:, 0]
        expected = share * network + sum(
            weight * part.outputs(inputs.numpy()) for weight, part in zip(others, model._companions, strict=True)
        )
        np.testing.assert_allclose(model._standardised(inputs)[0], expected, rtol=1e-6, atol=1e-7)
        assert sum(others) > 0.3

    def test_the_variance_is_that_of_rows_they_have_not_seen(self):
        generator = np.random.default_rng(6)
        x = generator.standard_normal((1_150, 60))
        y = np.abs(x[:, :4]).sum(1) + 0.3 * generator.standard_normal(1_150)
        model = BayesianMLPRegressor(**TINY, target_transform=None).fit(x[:150], y[:150])
        assert model.calibration_["weights"][1:].max() > 0.3
        mean, std = model.predict(x[150:], return_std=True)
        errors = ((mean - y[150:]) / std) ** 2
        assert 0.7 < errors.mean() < 1.3
        left_out = model._y_std[0] * model._left_out.scores
        assert 0.8 < np.mean(left_out**2) / np.mean((mean - y[150:]) ** 2) < 1.6

    @pytest.mark.parametrize("options", [{"calibrate": False}, {"noise": 0.2}, {"likelihood": "student_t"}])
    def test_where_there_are_none(self, options, additive):
        model = BayesianMLPRegressor(**TINY, **options).fit(*additive)
        assert model._companions == []
        np.testing.assert_array_equal(model.calibration_["weights"], [[1.0]])
