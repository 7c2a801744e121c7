"""Anchored ensembles: exact where the posterior is known, and what is kept, predicted and refused."""

import functools

import pytest
import torch
from torch import nn

import bayesadam as ba
from posterior.kinds import draw, flat

BETA, LAMBDA = 4.0, 2.0


X = draw(30, 3)
Y = (X @ torch.tensor([[1.0], [-0.5], [0.2]], dtype=torch.float64)) + draw(30, 1, seed=1) / BETA**0.5


def linear():
    return nn.Linear(3, 1, dtype=torch.float64)


def perceptron():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def with_ones(features):
    return torch.cat([features, torch.ones(len(features), 1, dtype=features.dtype)], 1)


def regression(features, targets, precision=LAMBDA):
    """Mean and covariance of the weights, and of the bias behind them, by the closed form."""
    features = with_ones(features)
    covariance = torch.linalg.inv(BETA * features.T @ features + precision * torch.eye(features.shape[1]))
    return covariance @ (BETA * features.T @ targets)[:, 0], covariance


def ensemble(make=perceptron, data=(X, Y), likelihood=None, **options):
    likelihood = ba.Gaussian(BETA).double() if likelihood is None else likelihood
    options = {"members": 3, "prior_precision": LAMBDA, "steps": 50, "progress": False, **options}
    return ba.anchored_ensemble(make, data, likelihood=likelihood, **options)


class CapturedError(Exception):
    pass


def minima(monkeypatch, count, seed=0):
    """The closed form of what every member of a linear model minimises, from its own targets and anchor: (M, 4)."""
    told = {}

    def train(models, data, **options):
        told.update(options, data=data)
        raise CapturedError

    with monkeypatch.context() as patch, pytest.raises(CapturedError):
        patch.setattr("bayesadam.anchored.train", train)
        ensemble(linear, members=count, seed=seed)
    anchors = torch.stack([flat(prior.mean) for prior in told["prior"]])
    targets = torch.stack([y[:, 0] for _, y in told["data"]])
    assert told["sample_weight"] is None
    assert {flat(prior.variance).unique().item() for prior in told["prior"]} == {1 / LAMBDA}
    _, covariance = regression(X, Y)
    return (BETA * targets @ with_ones(X) + LAMBDA * anchors) @ covariance


def test_members_of_a_linear_model_are_at_their_minima(monkeypatch):
    q = ensemble(linear, members=5, steps=300, lr=0.2, last_layer=False)
    members = torch.stack([flat(part.mean) for part in q.components])
    torch.testing.assert_close(members, minima(monkeypatch, 5), rtol=0, atol=1e-4)


def test_minima_of_a_linear_model_are_draws_from_the_posterior(monkeypatch):
    """Mean, covariance and independence by z-bounds."""
    count = 500
    mean, covariance = regression(X, Y)
    members = minima(monkeypatch, count)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (members - mean).T, upper=False)
    assert (white.mean(1) * count**0.5).abs().max() < 4.5
    excess = (white @ white.T / count - torch.eye(4)) * count**0.5
    excess.diagonal().div_(2**0.5)
    assert excess.abs().max() < 4.5
    assert ((white[:, 1:] * white[:, :-1]).mean(1) * count**0.5).abs().max() < 4.5


def test_the_last_layer_of_a_linear_model_is_the_whole_posterior():
    q = ensemble(linear, steps=1)
    mean, covariance = regression(X, Y)
    for part in q.components:
        assert isinstance(part, ba.DenseGaussian)
        torch.testing.assert_close(flat(part.mean), mean, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(part.covariance, covariance, rtol=1e-7, atol=1e-9)


def test_the_last_layer_is_the_posterior_given_the_features_and_the_data_as_they_are():
    model = perceptron()
    q = ensemble()
    hidden = []
    for part in q.components:
        with part.applied(model), torch.no_grad():
            mean, covariance = regression(model[:2](X), Y)
        hidden.append(part.mean["0.weight"])
        torch.testing.assert_close(flat(part.random.mean), mean, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(part.random.covariance, covariance, rtol=1e-7, atol=1e-8)
        assert list(part.fixed) == ["0.weight", "0.bias"]
    assert not torch.allclose(hidden[0], hidden[1])


def test_a_prior_at_the_scale_of_the_first_weights():
    def make():
        model = perceptron()
        with torch.no_grad():
            model[2].weight.copy_(torch.linspace(-1, 1, 5) * 0.1)  # a variance of 0.005: ten times that is about 1 / 16
            model[2].bias.fill_(0.3)
        return model

    part = ensemble(make, members=1, prior_precision="init").components[0]
    model = make()
    with part.applied(model), torch.no_grad():
        features = with_ones(model[:2](X))
    precision = BETA * features.T @ features + torch.tensor([16.0] * 5 + [0.125]).diag()
    torch.testing.assert_close(part.random.covariance.inverse(), precision, rtol=1e-6, atol=1e-5)


def test_the_members_are_kept_apart_from_torchs_generator():
    before = torch.get_rng_state()
    first = ensemble(members=2, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    again, other = ensemble(members=3, seed=5), ensemble(members=2, seed=6)
    for part, same, different in zip(first.components, again.components, other.components, strict=False):
        torch.testing.assert_close(part.mean["0.weight"], same.mean["0.weight"], rtol=1e-7, atol=1e-8)
        assert not torch.allclose(part.mean["0.weight"], different.mean["0.weight"])


CLASSES = {
    "Bernoulli": (ba.Bernoulli(), lambda: nn.Linear(3, 1, dtype=torch.float64), lambda p: (p < 0.5).double()[:, None]),
    "Categorical": (ba.Categorical(), lambda: nn.Linear(3, 3, dtype=torch.float64), lambda p: (3 * p).long()),
    "Poisson": (
        ba.likelihoods.Poisson(),
        lambda: nn.Linear(3, 1, dtype=torch.float64),
        lambda p: (9 * p).floor()[:, None],
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_the_last_layer_of_other_likelihoods_is_at_its_mode(name):
    likelihood, make, targets = CLASSES[name]
    y = targets(torch.rand(30, generator=torch.Generator().manual_seed(2), dtype=torch.float64))
    (part,) = ensemble(make, (X, y), likelihood, members=1, steps=1).components
    model = make()
    with part.applied(model):
        weights = list(model.parameters())
        norm = sum(weight.square().sum() for weight in weights)
        loss = -likelihood.log_density(model(X), y).sum() + LAMBDA / 2 * norm
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)])
        fitted = ba.posthoc.LaplaceApproximation(model, (X, y), likelihood=likelihood, structure="full").posterior(
            LAMBDA
        )
    assert gradient @ part.covariance @ gradient < 1e-6
    torch.testing.assert_close(part.covariance, fitted.covariance, rtol=1e-6, atol=1e-10)


def test_members_of_logistic_regression_are_as_wide_as_the_posterior():
    """Weights of the data points spread members as the Fisher information says, where the model is right."""
    x, weight = draw(400, 2, seed=3), torch.tensor([1.0, -1.0], dtype=torch.float64)
    uniform = torch.rand(400, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    y = (uniform < (x @ weight).sigmoid()).double().unsqueeze(1)
    likelihood = ba.Bernoulli()

    def make():
        return nn.Linear(2, 1, dtype=torch.float64)

    q = ensemble(make, (x, y), likelihood, members=150, steps=100, lr=0.2, last_layer=False)
    (laplace,) = ensemble(make, (x, y), likelihood, members=1, steps=1).components
    members = torch.stack([flat(part.mean) for part in q.components])
    factor = torch.linalg.cholesky(laplace.covariance)
    white = torch.linalg.solve_triangular(factor, (members - flat(laplace.mean)).T, upper=False)
    assert (white.mean(1).abs() < 0.35).all()
    assert ((0.7 < white.var(1)) & (white.var(1) < 1.4)).all()


def frozen_at_random():
    model = perceptron()
    model[0].weight.requires_grad_(False)
    return model


def frozen():
    model = frozen_at_random()
    with torch.no_grad():
        model[0].weight.copy_(draw(5, 3))
    return model


def test_frozen_weights_stay():
    q = ensemble(frozen, batch_size=7, steps=20)
    assert len(q.components) == 3
    assert list(q.components[0].mean) == ["0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": 0}, r"^members must be a whole number of at least 1, got 0$"),
        ({"batch_size": 0}, r"^batch_size must be a whole number of at least 1, got 0$"),
        ({"lr": 0.0}, r"^lr must be a positive, finite number, got 0.0$"),
        ({"prior_precision": "own"}, r"^prior_precision must be a positive, finite number or 'init', got 'own'$"),
        ({"likelihood": 1.0}, r"^likelihood must be a bayesadam"),
        ({"likelihood": ba.Gaussian(1.0, learned=True)}, r"^likelihood must have no learned parameters, got \['log_n"),
        ({"make": perceptron()}, "^make_model must be a function that returns a network, got Sequential$"),
        ({"make": functools.cache(perceptron)}, "^make_model must return new parameters at each call, got those of"),
        ({"data": X}, r"^data must be a pair of tensors \(x, y\), got Tensor$"),
        ({"data": (X, Y[:, 0])}, r"^data of member 0: target must be of the output's shape"),
        ({"make": lambda: nn.PReLU().double()}, r"^model must have an nn.Linear for structure='last_layer', got none$"),
        ({"make": lambda: nn.Tanh()}, r"^make_model must give networks with trainable parameters, got none$"),
        ({"make": frozen_at_random}, r"^make_model must give networks with the same constants, got others for '0.w"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        ensemble(**options)
