"""scikit-learn's own checks, with networks as small as they may be."""

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor

SMALL = {"members": 2, "hidden": (10,), "lr": 0.1}
STOCHASTIC = {
    "check_sample_weight_equivalence_on_dense_data": "a weight of 2 is not two rows: folds and networks are others",
    "check_methods_subset_invariance": "1e-7 is a bit of float32: products of other sizes round otherwise (see below)",
}


def expected(estimator):
    return STOCHASTIC


@parametrize_with_checks(
    [
        BayesianMLPRegressor(epochs=25, **SMALL),
        BayesianMLPClassifier(epochs=20, **SMALL),
    ],
    expected_failed_checks=expected,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_check_estimator(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", [BayesianMLPRegressor, BayesianMLPClassifier])
def test_predictions_do_not_depend_on_the_rows_beside(kind):
    x = np.random.default_rng(0).normal(size=(20, 3))
    y = x[:, 0] if kind is BayesianMLPRegressor else (x[:, 0] > 0).astype(int)
    model = kind(epochs=20, random_state=0, **SMALL).fit(x, y)
    predict = model.predict if kind is BayesianMLPRegressor else model.predict_proba
    alone = np.concatenate([predict(row[None]) for row in x])
    np.testing.assert_allclose(predict(x), alone, rtol=1e-5, atol=1e-6)


def test_torch_generator_is_left_alone():
    state = torch.get_rng_state()
    BayesianMLPRegressor(members=2, epochs=2, random_state=0).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
    assert torch.equal(torch.get_rng_state(), state)
