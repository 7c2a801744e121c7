"""scikit-learn's own checks, with networks as small as they may be."""

import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor

SMALL = {"members": 2, "hidden": (10,), "lr": 0.1}
STOCHASTIC = {
    "check_sample_weight_equivalence_on_dense_data": "a weight of 2 is not two rows: folds and networks are others",
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


def test_torch_generator_is_left_alone():
    state = torch.get_rng_state()
    BayesianMLPRegressor(members=2, epochs=2, random_state=0).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
    assert torch.equal(torch.get_rng_state(), state)
