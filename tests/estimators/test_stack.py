"""All members at once, against :func:`bayesadam.predict` member by member."""

import pickle

import numpy as np
import pytest
import torch

import bayesadam as ba
from bayesadam.posterior import DenseGaussian
from bayesadam.posterior.kronecker import KroneckerGaussian
from bayesadam.posterior.low_rank import LowRankGaussian
from bayesadam.posterior.partial import PartialGaussian
from bayesadam.sklearn import METHODS, BayesianMLPClassifier, BayesianMLPRegressor
from bayesadam.tables.estimators import stack
from bayesadam.tables.estimators.stack import stacked_predictions

pytestmark = pytest.mark.usefixtures("few_trees")


@pytest.fixture(autouse=True)
def forgotten():
    """No stack of another test's estimator."""
    stack._STACKS.clear()


def fit(kind, method, data, hidden=(6, 5), **options):
    return kind(method, hidden=hidden, members=3, epochs=3, mc_samples=4, random_state=0, **options).fit(*data)


def assert_all_at_once(model, x, possible=True):
    inputs = model._in_parts(x)[0]
    options = {"mc_samples": model.mc_samples}
    args = (model._method.predict, model.network_, model.posterior_, model._likelihoods, inputs)
    found = stacked_predictions(*args, **options)
    assert (found is not None) == possible
    for member, own in enumerate(found or []):
        alone = model._predictions(inputs, member)
        assert type(own) is type(alone)
        if isinstance(own, ba.predictive.ClassificationPredictive):
            torch.testing.assert_close(own.log_probs, alone.log_probs, rtol=1e-4, atol=1e-5)
            continue
        if isinstance(own, ba.predictive.MixturePredictive):  # outputs are logarithms, of rates that may be huge
            torch.testing.assert_close(own.outputs, alone.outputs, rtol=1e-4, atol=1e-4)
            continue
        torch.testing.assert_close(own.mean, alone.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(own.variance, alone.variance, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(own.epistemic, alone.epistemic, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [BayesianMLPRegressor, BayesianMLPClassifier])
def test_all_at_once_is_member_by_member(kind, method, curve, blobs):
    data = curve if kind is BayesianMLPRegressor else blobs
    assert_all_at_once(fit(kind, method, data), data[0])


def test_other_networks_targets_and_likelihoods(curve):
    x, y = curve
    for hidden, activation in (((), "relu"), ((7,), "silu"), ((4, 3, 2), "gelu")):
        assert_all_at_once(fit(BayesianMLPRegressor, "laplace", curve, hidden, activation=activation), x)
    both = np.stack([y, 2.0 * y + x[:, 0]], 1)
    assert_all_at_once(fit(BayesianMLPRegressor, "laplace", (x, both), likelihood=ba.HeteroscedasticGaussian()), x)
    assert_all_at_once(fit(BayesianMLPRegressor, "laplace", (x, both), hidden=(40,)), x)
    assert_all_at_once(fit(BayesianMLPRegressor, "laplace", (x, np.rint(y**2)), likelihood="poisson"), x)
    assert_all_at_once(fit(BayesianMLPRegressor, "vadam", (x, np.rint(y**2)), likelihood="poisson"), x)


@pytest.mark.parametrize(
    ("kind", "hidden", "expected"),
    [
        (BayesianMLPRegressor, (10,), DenseGaussian),
        (BayesianMLPRegressor, (40,), LowRankGaussian),
        (BayesianMLPClassifier, (40,), KroneckerGaussian),
        (BayesianMLPRegressor, (400,), PartialGaussian),
    ],
)
def test_kinds_of_laplace_posteriors(kind, hidden, expected, curve, blobs):
    data = curve if kind is BayesianMLPRegressor else blobs
    model = fit(kind, "laplace", data, hidden)
    assert {type(q) for q in model.posterior_.components} == {expected}
    assert_all_at_once(model, data[0], possible=expected is not KroneckerGaussian)


@pytest.mark.parametrize("method", ["laplace", "vadam"])
def test_rows_that_do_not_fit_together(method, curve, monkeypatch):
    """They are evaluated one after another, and very large posteriors member by member, with the same result."""
    model = fit(BayesianMLPRegressor, method, curve, hidden=(40,))
    whole = model.predict(curve[0], return_std=True)
    monkeypatch.setattr(stack, "AT_ONCE", 1)
    np.testing.assert_allclose(model.predict(curve[0], return_std=True), whole, rtol=1e-4, atol=1e-5)
    stack._STACKS.clear()
    monkeypatch.setattr(stack, "LARGEST", 10)
    assert_all_at_once(model, curve[0], possible=False)
    np.testing.assert_allclose(model.predict(curve[0], return_std=True), whole, rtol=1e-4, atol=1e-5)


def test_another_fit_has_another_stack(curve):
    """The stack belongs to the posterior: it is not pickled, and a new fit or number of samples makes another."""
    x, y = curve
    model = fit(BayesianMLPRegressor, "vadam", (x, y))
    size = len(pickle.dumps(model))
    model.predict(x)
    assert len(pickle.dumps(model)) == size
    model.set_params(mc_samples=7)
    assert_all_at_once(model, x)
    model.fit(x, -y)
    assert_all_at_once(model, x)
    assert len(stack._STACKS) == 1
