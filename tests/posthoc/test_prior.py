"""Laplace posteriors with another posterior as prior, against dense matrices in float64."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from posthoc.models import draw

F64 = {"dtype": torch.float64}
N = 12
CLASSES = ba.Categorical()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def rows(seed):
    x = draw(N, 3, seed=seed)
    return x, x.argmax(1)


def fitted(net, seed, structure):
    return ba.posthoc.LaplaceApproximation(net, rows(seed), likelihood=CLASSES, structure=structure, progress=False)


def matrix(q, name):
    """Precision of one tensor's weights, by the definition."""
    value = q.eigenvalues[name]
    sides = len(value), value.numel() // len(value)
    left, right = (part.get(name, torch.eye(side, **F64)) for part, side in zip((q.left, q.right), sides, strict=True))
    basis = torch.kron(left, right)
    return basis @ (1 / value).flatten().diag() @ basis.T, basis


def test_full_precisions_are_added():
    net = network()
    first = fitted(net, 1, "full").posterior(2.0)
    second = fitted(net, 2, "full")
    q = second.posterior(prior=first, temperature=0.5)
    expected = torch.linalg.inv(first.covariance) + 2.0 * second.curvature
    torch.testing.assert_close(torch.linalg.inv(q.covariance), expected, rtol=1e-8, atol=1e-8)
    assert "prior_precision" not in q.hyperparameters
    both = ba.posthoc.LaplaceApproximation(
        net, tuple(torch.cat(pair) for pair in zip(rows(1), rows(2), strict=True)), likelihood=CLASSES,
        structure="full", progress=False,
    ).posterior(2.0)  # fmt: skip
    torch.testing.assert_close(second.posterior(prior=first).covariance, both.covariance, rtol=1e-8, atol=1e-10)
    marginal = second.posterior(prior=first.marginal())
    own = torch.cat([v.flatten() for v in first.variance.values()])
    torch.testing.assert_close(
        torch.linalg.inv(marginal.covariance), second.curvature + (1 / own).diag(), rtol=1e-8, atol=1e-8
    )


def test_diagonal_precisions_are_added():
    net = network()
    prior, second = fitted(net, 1, "diagonal").posterior(2.0), fitted(net, 2, "diagonal")
    q = second.posterior(prior=prior)
    for name, variance in q.variance.items():
        torch.testing.assert_close(1 / variance, 1 / prior.variance[name] + second.curvature[name])
    dense = fitted(net, 1, "full").posterior(2.0)
    conditional = torch.linalg.inv(dense.covariance).diagonal()
    found = torch.cat([v.flatten() for v in second.posterior(prior=dense).variance.values()])
    own = torch.cat([v.flatten() for v in second.curvature.values()])
    torch.testing.assert_close(1 / found, conditional + own, rtol=1e-8, atol=1e-8)


def test_kronecker_precisions_are_added_up_to_the_diagonal_of_the_sum():
    net = network()
    prior, second = fitted(net, 1, "kron").posterior(2.0), fitted(net, 2, "kron")
    q, likelihood = second.posterior(prior=prior), second.posterior(1e-6)
    for name in q.mean:
        found, basis = matrix(q, name)
        total = matrix(prior, name)[0] + matrix(likelihood, name)[0] - 1e-6 * torch.eye(len(basis), **F64)
        in_basis = basis.T @ total @ basis
        torch.testing.assert_close(basis.T @ found @ basis, in_basis.diagonal().diag(), rtol=1e-6, atol=1e-6)
        lost = (in_basis - in_basis.diagonal().diag()).norm() / total.norm()
        apart = (total - total.diagonal().diag()).norm() / total.norm()
        assert lost < 0.6 * apart  # which a posterior with independent weights would lose


@pytest.mark.parametrize("case", ["number", "same"])
def test_a_sum_that_is_a_kronecker_product_is_exact(case):
    net = network()
    laplace = fitted(net, 1, "kron")
    if case == "number":
        mean = laplace.posterior().mean
        prior = ba.DiagonalGaussian(mean, {name: torch.full_like(v, 0.25) for name, v in mean.items()})
        expected = laplace.posterior(4.0)
    else:
        prior = laplace.posterior(4.0)
        expected = laplace.posterior(4.0, num_data=2 * N)
    q = laplace.posterior(prior=prior)
    for name in q.mean:
        torch.testing.assert_close(matrix(q, name)[0], matrix(expected, name)[0], rtol=1e-6, atol=1e-6)


def test_what_is_refused():
    net = network()
    kron, full, diagonal = (fitted(net, 1, s) for s in ("kron", "full", "diagonal"))
    q = diagonal.posterior()
    with pytest.raises(ValueError, match="prior must not be given together with prior_precision, got 2.0"):
        kron.posterior(2.0, prior=q)
    with pytest.raises(ValueError, match="rank must be None with a posterior as prior, got 2"):
        full.posterior(rank=2, prior=q)
    with pytest.raises(ValueError, match="prior must be None for structure='last_layer'"):
        fitted(net, 1, "last_layer").posterior(prior=q)
    with pytest.raises(ValueError, match="prior must be a DiagonalGaussian or a KroneckerGaussian for structure='kron"):
        kron.posterior(prior=full.posterior())
    with pytest.raises(ValueError, match="prior must be over the weights"):
        kron.posterior(prior=ba.DiagonalGaussian({"w": torch.zeros(2)}, {"w": torch.ones(2)}))
    with pytest.raises(ValueError, match="prior of '0.weight' must have positive variances, got 0"):
        kron.posterior(prior=q.prune(0.5))
