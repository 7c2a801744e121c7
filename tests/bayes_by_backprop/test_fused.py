"""The compiled pass over all weights: against PyTorch's operations in float64, and where it is used."""

import copy
import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import native
from bayesadam.bayes_by_backprop import fused, variational

pytestmark = pytest.mark.skipif(not native.has_compiler(), reason="needs a C++ compiler")
CENTER = 0.3


def weights(sizes=(5, 0, 70_001), spread=3.0):
    generator = torch.Generator().manual_seed(0)
    means, rhos, eps = ([torch.randn(n, generator=generator) for n in sizes] for _ in range(3))
    return means, [spread * rho - 3.0 for rho in rhos], eps


def by_hand(means, rhos, eps):
    """In float64: samples, or variances where there is no noise, and the three sums."""
    stds = [nn.functional.softplus(rho, threshold=800.0) for rho in rhos]
    sums = [
        sum((mean - CENTER).square().sum() for mean in means),
        sum(std.square().sum() for std in stds),
        sum(std.log().sum() for std in stds),
    ]
    if eps is None:
        return [std.square() for std in stds], torch.stack(sums)
    return [mean + std * e for mean, std, e in zip(means, stds, eps, strict=True)], torch.stack(sums)


@pytest.fixture(params=["", "-fno-openmp"])
def vectors(request, monkeypatch):
    """The widest vectors of the processor; and none, for which a sum in float32 rounds more often."""
    monkeypatch.setenv("BAYESADAM_CXXFLAGS", request.param)
    fused._library.cache_clear()
    yield
    fused._library.cache_clear()


@pytest.mark.parametrize("around_mean", [True, False])
def test_values_and_gradients(around_mean, vectors):
    means, rhos, eps = weights() if around_mean else (*weights(spread=1.0)[:2], None)
    factors = torch.tensor([0.7, -1.3, 2.1], dtype=torch.float64)
    results = []
    for dtype, function in (
        (torch.float32, lambda *w: fused.sample(*w, CENTER, around_mean=around_mean)),
        (torch.float64, by_hand),
    ):
        inputs = [[t.to(dtype).requires_grad_() for t in part] for part in (means, rhos)]
        thetas, sums = function(*inputs, eps)
        loss = sum(theta.sin().sum() for theta in thetas) + (factors * sums).sum()
        gradients = torch.autograd.grad(loss, inputs[0] + inputs[1])
        results.append([*thetas, sums, *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=2e-6 if around_mean else 4e-6, atol=2e-6)


@pytest.mark.parametrize("rho", [-math.inf, -200.0, -87.5, -30.0, -15.0, -1e-30, 0.0, 1.0, 60.0, 1e30])
def test_extremes(rho):
    """Finite slopes at the narrowest posteriors, and no loss of digits in between."""
    mean, rhos, eps = torch.zeros(1), torch.tensor([rho], requires_grad=True), torch.ones(1)
    (std,), sums = fused.sample([mean], [rhos], [eps], 0.0)
    exact = math.log1p(math.exp(rho)) if rho < 40 else rho
    assert std.item() == pytest.approx(exact, rel=3e-7, abs=2e-38)
    assert sums[2].item() == pytest.approx(rho if rho < -30 else math.log(exact), rel=3e-7)
    (slope,) = torch.autograd.grad(sums[2], rhos)
    expected = 1.0 if rho < -30 else 1.0 / (1.0 + math.exp(-rho)) / exact
    assert slope.item() == pytest.approx(expected, rel=1e-6)


def test_nan_stays():
    (theta,), sums = fused.sample([torch.zeros(2)], [torch.tensor([math.nan, 0.0])], [torch.ones(2)], 0.0)
    assert theta.isnan().tolist() == [True, False]
    assert sums.isnan()[:2].tolist() == [False, True]


def test_number_of_threads_does_not_matter(set_threads):
    found = []
    for threads in (1, 2, 4):
        set_threads(threads)
        means, rhos, eps = weights()
        for rho in rhos:
            rho.requires_grad_()
        thetas, sums = fused.sample(means, rhos, eps, CENTER)
        found.append([*thetas, sums, *torch.autograd.grad(sums.sum() + thetas[2].sum(), rhos)])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
def test_the_default_dtype_does_not_matter(estimator, set_default_dtype):
    x, losses = torch.randn(8, 12), []
    torch.manual_seed(0)
    net = variational(nn.Linear(12, 3), seed=4, estimator=estimator)
    for dtype in (torch.float32, torch.float64):
        set_default_dtype(dtype)
        torch.manual_seed(1)
        copied = copy.deepcopy(net)
        losses.append(copied.loss(x, torch.zeros(8, 3), likelihood=ba.Gaussian(), num_data=100).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_what_fits():
    plain = torch.empty(4, 5)
    assert fused._fits([plain, nn.Parameter(plain)])
    for other in (plain.T, plain.double(), plain.to("meta"), plain[:, :3]):
        assert not fused._fits([plain, other])
