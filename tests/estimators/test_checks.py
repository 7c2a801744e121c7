"""scikit-learn's own checks, with networks as small as they may be."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import estimator_checks_generator

from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor
from bayesadam.tables.estimators.methods import METHODS

pytestmark = pytest.mark.usefixtures("few_trees")
SMALL = {"members": 2, "hidden": (10,), "lr": 0.1}
LEFT_OUT = {
    "check_sample_weight_equivalence_on_dense_data": "a weight of 2 is not two rows: folds and networks are others",
    "check_methods_subset_invariance": "1e-7 is a bit of float32: products of other sizes round otherwise (see below)",
    "check_array_api_input": "arrays of other libraries are not promised",
}


def checks():
    for estimator in (
        BayesianMLPRegressor(epochs=25, **SMALL),
        BayesianMLPClassifier(epochs=20, calibrate=False, **SMALL),
    ):
        for model, check in estimator_checks_generator(estimator):
            name = check.func.__name__
            if name not in LEFT_OUT:
                options = ",".join(map(str, check.keywords.values()))
                yield pytest.param(model, check, id=f"{type(model).__name__}-{name}-{options}")


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.SkipTestWarning",
    "ignore:.* rows are copies of others",
    "ignore:the targets are small whole numbers",
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


TASKS = ("numbers", "counts", "classes")


@pytest.mark.parametrize(
    ("method", "task"),
    [*((method, TASKS[i % 3]) for i, method in enumerate(METHODS)), *(("laplace", task) for task in TASKS[1:])],
)
def test_predictions_do_not_depend_on_the_rows_beside(method, task):
    x = np.random.default_rng(0).normal(size=(20, 3))
    options = {"method": method, "epochs": 5, "random_state": 0, **SMALL}
    if task == "classes":
        model = BayesianMLPClassifier(**options).fit(x, x[:, 0] > 0)
        predict = model.predict_proba
    else:
        options |= {"likelihood": "poisson"} if task == "counts" else {}
        model = BayesianMLPRegressor(**options).fit(x, np.floor(x[:, 0] + 5.0))
        predict = partial(model.predict, quantiles=[0.05, 0.5, 0.95])
    alone = np.concatenate([predict(row[None]) for row in x[:5]])
    np.testing.assert_allclose(predict(x)[:5], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [BayesianMLPRegressor, BayesianMLPClassifier])
def test_a_fit_that_fails_changes_nothing(kind):
    """Optuna stops a fit by an error in its callback; the scales of the new rows must not go with the old networks."""
    x = np.random.default_rng(0).normal(size=(20, 3))
    y = x[:, 0] if kind is BayesianMLPRegressor else (x[:, 0] > 0).astype(int)
    model = kind(method="ivon", epochs=5, random_state=0, **SMALL)

    def stop(status):
        raise RuntimeError("pruned")

    with pytest.raises(RuntimeError, match="pruned"):
        model.fit(x, y, on_epoch=stop)
    assert not hasattr(model, "n_features_in_")
    before = model.fit(x, y).predict(x)
    with pytest.raises(RuntimeError, match="pruned"):
        model.fit(100.0 * x + 5.0, y[::-1], on_epoch=stop)
    with pytest.raises(ValueError, match="NaN|y must"):
        model.fit(x, np.full(20, np.nan))
    np.testing.assert_array_equal(model.predict(x), before)


def test_torch_generator_is_left_alone():
    state = torch.get_rng_state()
    BayesianMLPRegressor(members=2, epochs=2, random_state=0).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
    assert torch.equal(torch.get_rng_state(), state)
