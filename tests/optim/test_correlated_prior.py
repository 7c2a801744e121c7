"""Priors with correlations: exact posteriors of linear regression, and what follows from their limits."""

import copy

import pytest
import torch
from torch import nn

import bayesadam as ba

F64 = {"dtype": torch.float64}
N, NOISE = 40, 0.5


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **F64)


def orthogonal(size, seed):
    return torch.linalg.qr(draw(size, size, seed=seed)).Q.contiguous()


def linear():
    return nn.Linear(4, 3, **F64)


def kronecker():
    mean = {"weight": draw(3, 4, seed=1), "bias": draw(3, seed=2)}
    values = {"weight": (0.5 * draw(3, 4, seed=3)).exp(), "bias": draw(3, seed=4).exp()}
    left = {"weight": orthogonal(3, 5), "bias": orthogonal(3, 6)}
    return ba.KroneckerGaussian(mean, values, left, {"weight": orthogonal(4, 7)})


def covariance(q):
    """Of the weight's 12 numbers and the bias's 3, by the definition."""
    basis = torch.kron(q.left["weight"], q.right["weight"]), q.left["bias"]
    return torch.block_diag(
        *(b @ q.eigenvalues[name].flatten().diag() @ b.T for b, name in zip(basis, q.mean, strict=True))
    )


def dense():
    factor = torch.eye(15, **F64) + 0.3 * draw(15, 15, seed=8)
    return ba.DenseGaussian({"weight": draw(3, 4, seed=1), "bias": draw(3, seed=2)}, factor @ factor.T)


PRIORS = {"kronecker": (kronecker, covariance), "dense": (dense, lambda q: q.covariance)}


def flat(tensors):
    return torch.cat([value.flatten() for value in tensors.values()])


@pytest.mark.parametrize("kind", PRIORS)
def test_linear_regression_has_the_exact_mean_and_the_best_independent_widths(kind):
    make, covariance_of = PRIORS[kind]
    prior = make()
    x, y = draw(N, 4, seed=9), draw(N, 3, seed=10)
    inputs = torch.cat([x, torch.ones(N, 1, **F64)], 1)
    design = torch.zeros(N, 3, 15, **F64)
    for row in range(3):  # weights are numbered row by row, then come the biases
        design[:, row, 4 * row : 4 * row + 4] = inputs[:, :4]
        design[:, row, 12 + row] = 1.0
    design = design.flatten(0, 1)
    precision = torch.linalg.inv(covariance_of(prior))
    total = precision + design.T @ design / NOISE
    mean = torch.linalg.solve(total, precision @ flat(prior.mean) + design.T @ y.flatten() / NOISE)

    model = linear()
    opt = ba.VON(
        model.named_parameters(),
        lr=0.3,
        num_data=N,
        prior=prior,
        betas=(0.0, 0.9),
        hessian="exact",
        mc_samples=2,
        antithetic=True,
    )
    for _ in range(150):
        opt.step(lambda: ((model(x) - y) ** 2).sum() / (2 * NOISE * N))
    torch.testing.assert_close(flat(opt.posterior().mean), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(flat(opt.posterior().variance), 1 / total.diagonal(), rtol=1e-5, atol=0)
    assert (flat(prior.mean) - mean).abs().max() > 0.1
    assert (covariance_of(prior).diagonal() * precision.diagonal() - 1).max() > 0.05  # else nothing is correlated


@pytest.mark.parametrize("low_memory", [False, True])
def test_drop_in_training_has_the_prior_of_each_weight_given_the_others(low_memory):
    prior, model = kronecker(), linear()
    opt = ba.Vadam(model.named_parameters(), num_data=N, batch_size=8, prior=prior, low_memory=low_memory)
    opt.train()
    for number in range(3):
        before = flat(opt.posterior().mean)
        opt.zero_grad()
        loss(model, draw(8, 4, seed=number)).backward()
        opt.step()
    precision = torch.linalg.inv(covariance(prior))
    expected = before - precision @ (before - flat(prior.mean)) / precision.diagonal()
    given = torch.cat([opt.state[p]["prior_mean"].flatten() for p in model.parameters()])
    torch.testing.assert_close(given, expected, rtol=1e-8, atol=1e-8)
    assert (given - flat(prior.mean)).abs().max() > 1e-4


def loss(model, x):
    return model(x).square().mean()


def train(opt, model, steps, start=0):
    opt.train()
    for number in range(start, start + steps):
        opt.zero_grad()
        loss(model, draw(8, 4, seed=number)).backward()
        opt.step()
    opt.eval()
    return flat(dict(model.named_parameters())).detach()


def alike(seed=0):
    torch.manual_seed(seed)
    return linear()


@pytest.mark.parametrize("make", [ba.Vadam, ba.IVON])
def test_without_correlations_it_is_the_prior_with_independent_weights(make):
    given = ba.DiagonalGaussian(
        {"weight": draw(3, 4, seed=1), "bias": draw(3, seed=2)},
        {"weight": 0.01 * draw(3, 4, seed=3).exp(), "bias": 0.01 * draw(3, seed=4).exp()},
    )
    found = []
    for prior in (
        given,
        ba.DenseGaussian(given.mean, torch.diag(flat(given.variance))),
        ba.KroneckerGaussian(given.mean, given.variance, {"bias": torch.eye(3, **F64)}, {}),
    ):
        model = linear()
        opt = make(model.named_parameters(), num_data=N, batch_size=8, prior=prior)
        found.append(train(opt, model, 20))
    torch.testing.assert_close(found[1], found[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found[2], found[0], rtol=1e-8, atol=1e-8)


def test_a_copy_and_a_checkpoint_continue_with_the_prior():
    prior = kronecker()
    model = alike()
    opt = ba.IVON(model.named_parameters(), num_data=N, prior=prior)
    train(opt, model, 3)
    copied_model, copied = copy.deepcopy((model, opt))
    restored_model = alike(1)
    restored = ba.IVON(restored_model.named_parameters(), num_data=N, prior=prior)
    restored_model.load_state_dict(model.state_dict())
    restored.load_state_dict(opt.state_dict())
    expected = train(opt, model, 3, 3)
    assert torch.equal(train(copied, copied_model, 3, 3), expected)
    assert torch.equal(train(restored, restored_model, 3, 3), expected)


def test_what_is_refused():
    prior, model = kronecker(), linear()
    with pytest.raises(ValueError, match="covariance must be diagonal with such a prior, got 'full'"):
        ba.VON(model.named_parameters(), num_data=N, prior=prior, covariance="full")
    zero = {"weight": torch.zeros(3, 4, **F64), "bias": torch.ones(3, **F64)}
    pruned = ba.KroneckerGaussian(prior.mean, zero, {"weight": orthogonal(3, 1)}, {})
    with pytest.raises(ValueError, match="prior of 'weight' must have positive variances, got 0"):
        ba.IVON(model.named_parameters(), num_data=N, prior=pruned)
    with pytest.raises(ValueError, match="prior must be a number, a DiagonalGaussian"):
        ba.IVON(model.named_parameters(), num_data=N, prior=ba.Mixture([prior, prior]))
    saved = ba.IVON(model.named_parameters(), num_data=N, prior=prior).state_dict()
    other = ba.IVON(model.named_parameters(), num_data=N, prior=prior.marginal())
    with pytest.raises(ValueError, match="correlated_prior of the state_dict must be None, got True"):
        other.load_state_dict(saved)
