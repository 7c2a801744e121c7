"""What leaving out an example does: against exact linear regressions, and against per-example gradients."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from posterior.kinds import diagonal

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X.sum(1, keepdim=True) + torch.randn(12, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
NOISE = 4.0
"""Precision of the noise."""


def exact(weights):
    """The posterior under a standard normal prior, with a weight for every example's log-likelihood."""
    precision = torch.eye(3).double() + NOISE * X.T @ (weights.unsqueeze(1) * X)
    mean = torch.linalg.solve(precision, NOISE * X.T @ (weights.unsqueeze(1) * Y)).T
    return ba.DenseGaussian.from_precision({"weight": mean}, precision)


def test_it_is_the_exact_derivative_for_a_linear_regression():
    """With the share ``1 - t`` of an example, its loss has the derivative that is predicted at ``t = 0``."""
    likelihood, model = ba.Gaussian(noise_precision=NOISE), nn.Linear(3, 1, bias=False).double()
    weights = torch.ones(12, dtype=torch.float64)
    expected = []
    for row in range(12):
        losses = []
        for step in (1e-5, -1e-5):
            changed = weights.clone()
            changed[row] -= step
            losses.append(-likelihood.log_prob(X[row : row + 1] @ exact(changed).mean["weight"].T, Y[row : row + 1]))
        expected.append((losses[0] - losses[1]) / 2e-5)
    found = ba.predictive.sensitivity(model, exact(weights), (X, Y), likelihood=likelihood)
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-6, atol=1e-9)
    loader = [(X[:5], Y[:5]), (X[5:], Y[5:])]
    torch.testing.assert_close(ba.predictive.sensitivity(model, exact(weights), loader, likelihood=likelihood), found)


@pytest.mark.parametrize("structure", ["diagonal", "kron", "full", "last_layer"])
def test_it_is_the_norm_of_the_gradient_of_an_example(structure, monkeypatch):
    monkeypatch.setattr("bayesadam.predictive.leave_one_out.CHUNK_BYTES", 1000)
    torch.manual_seed(0)
    model, labels = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double(), torch.arange(12) % 3
    likelihood = ba.Categorical()
    q = ba.laplace(model, (X, labels), likelihood=likelihood, structure=structure, prior_precision=1.0)
    means = [mean.flatten() for mean in q.mean.values()]

    def nll(weights):
        parts = weights.split([len(mean) for mean in means])
        return -q.log_prob({name: part.view_as(q.mean[name]) for name, part in zip(q.mean, parts, strict=True)})

    precision = torch.autograd.functional.hessian(nll, torch.cat(means))
    covariance = torch.linalg.pinv(precision, hermitian=True)  # weights without a variance have zeros in both
    found = ba.predictive.sensitivity(model, q, (X, labels), likelihood=likelihood, batch_size=7)
    for row in range(12):
        loss = likelihood.nll(model(X[row : row + 1]), labels[row : row + 1])
        gradients = torch.autograd.grad(loss, [dict(model.named_parameters())[name] for name in q.mean])
        gradient = torch.cat([g.flatten() for g in gradients])
        assert found[row].item() == pytest.approx((gradient @ covariance @ gradient).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((exact(torch.ones(12)), []), "data must have at least one batch, got an empty loader"),
        ((ba.MCDropout(nn.Dropout(0.5)), (X, Y)), "posterior must be a Gaussian over the weights .*got MCDropout"),
        ((diagonal(), (X, Y)), "model must have a parameter"),
        ((exact(torch.ones(12)), (X, Y[:, 0])), "target must be of the output's shape"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        ba.predictive.sensitivity(nn.Linear(3, 1, bias=False).double(), *arguments, likelihood=ba.Gaussian())
