"""Whole calls inside of ``torch.no_grad()`` and ``torch.inference_mode()``, with data that are made there."""

import numpy as np
import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor
from posterior.kinds import around

pytestmark = pytest.mark.usefixtures("few_trees")
X = torch.linspace(-1, 1, 120).view(40, 3)
Y = X[:, :1].sin()
GAUSSIAN = ba.Gaussian()
EVERY = pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])


@torch.inference_mode(False)
def network(*layers):
    """A network as it is made before the call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), *layers, nn.Linear(4, 1))


def predicted(q, **options):
    return lambda x, _: (
        ba.predict(network(), q(network()), x, likelihood=GAUSSIAN, **options).rescale(1.0, 2.0).variance
    )


def laplace(structure):
    def fitted(x, y):
        q = ba.laplace(network(), (x, y), likelihood=GAUSSIAN, structure=structure)
        return torch.cat([value.flatten() for value in q.variance.values()])

    return fitted


def badam(x, y):
    model = network()
    opt = torch.optim.Adam(model.parameters())
    with torch.inference_mode(False), torch.enable_grad():
        GAUSSIAN.nll(model(X), Y).backward()
        opt.step()
    q = ba.badam(opt, model, num_data=40, data=(x, y), likelihood=GAUSSIAN)
    return torch.cat([value.flatten() for value in q.variance.values()])


def dropout(x, _):
    model = network(nn.Dropout())
    return ba.predict(model, ba.MCDropout(model), x, likelihood=GAUSSIAN).variance


def ensemble(x, y):
    q = ba.train_ensemble(network, (x, y), likelihood=GAUSSIAN, epochs=2, batch_size=10, members=2)
    return q.mean["0.weight"]


CALLS = {
    **{f"predict {method}": predicted(around, method=method) for method in ("monte_carlo", "linearized", "moments")},
    "predict ensemble": predicted(lambda model: ba.ensemble([model, model])),
    **{name: laplace(name) for name in ("diagonal", "kron", "full", "last_layer", "last_layer_kron")},
    "badam": badam,
    "dropout": dropout,
    "train_ensemble": ensemble,
    "calibrate": lambda x, y: ba.calibrate(network(), (x, y), likelihood=GAUSSIAN).log_noise_precision,
    "tune": lambda x, y: ba.tune_posterior(
        around(network()), network(), (x, y), likelihood=GAUSSIAN
    ).posterior.variance["0.weight"],
    "prune": lambda x, y: torch.tensor(
        ba.pruning_curve(network(), around(network()), (x, y), likelihood=GAUSSIAN, fractions=[0.5]).scores["nll"]
    ),
}


@pytest.mark.filterwarnings("ignore:held_out favours")
@EVERY
@pytest.mark.parametrize("name", list(CALLS))
def test_results_are_the_same(name, context):
    expected = CALLS[name](X, Y)
    with context():
        found = CALLS[name](X.clone(), Y.clone())
        assert torch.equal(found, expected.to(found.dtype))


REGRESSORS = [(BayesianMLPRegressor, method) for method in ("laplace", "badam", "anchored", "vadam")]


@pytest.mark.parametrize(("kind", "method"), [*REGRESSORS, (BayesianMLPClassifier, "laplace")])
def test_estimators(kind, method):
    x, y = X.numpy(), Y[:, 0].numpy()
    y = (y > 0).astype(int) if kind is BayesianMLPClassifier else y

    def outputs(estimator):
        if kind is BayesianMLPClassifier:
            return estimator.predict_proba(x)
        return np.stack(estimator.predict(x, return_std=True))

    def fitted():
        return kind(method=method, epochs=2, members=2, hidden=(4,), random_state=0).fit(x, y)

    expected = outputs(fitted())
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            inside = fitted()
            assert np.array_equal(outputs(inside), expected)
        assert np.array_equal(outputs(inside), expected)
