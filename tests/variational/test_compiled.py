"""Noise by compiled kernels: that of the eager code, up to rounding."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise
from bayesadam.objectives import nelbo
from bayesadam.optim import compiled
from bayesadam.variational import kernels, variational

needs_compiler = pytest.mark.skipif(not noise.has_compiler(), reason="needs a C++ compiler")


@needs_compiler
@pytest.mark.parametrize("numel", [2 * noise.TILE, 3 * noise.TILE + 5, noise.BLOCK + 7, noise.BLOCK + 3 * noise.TILE])
def test_the_noise_is_that_of_the_eager_code(numel):
    coordinates = (2**40 + 3, 7, 0, 5)
    expected = noise.normal(*coordinates, (numel,))
    torch.testing.assert_close(kernels.normal_(torch.empty(numel), *coordinates), expected, rtol=1e-5, atol=1e-5)


def test_what_fits():
    assert kernels.fits(torch.empty(2, noise.TILE))
    assert not kernels.fits(torch.empty(2 * noise.TILE - 1))
    assert not kernels.fits(torch.empty(2, noise.TILE).double())
    assert not kernels.fits(torch.empty(noise.TILE, 2).T)


@needs_compiler
def test_training_is_the_same_up_to_rounding():
    x, y = torch.randn(8, 120), torch.randint(3, (8,))
    losses, gradients = [], []
    for compile in (False, True):
        torch.manual_seed(0)
        net = variational(nn.Sequential(nn.Linear(120, 80), nn.Tanh(), nn.Linear(80, 3)), seed=4, compile=compile)
        loss = nelbo(net, x, y, likelihood=ba.Categorical(), num_data=100, mc_samples=2, antithetic=True)
        loss.backward()
        losses.append(loss.item())
        gradients.append([p.grad for p in net.parameters()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own looking
@pytest.mark.parametrize(("estimator", "graphs"), [("shared", 1), ("local", 0), ("flipout", 0)])
def test_a_compiled_network_is_compiled_once(estimator, graphs):
    """The model at a shared sample is, and draws are not: a draw compiled in would be compiled again every time."""
    compiled_graphs = []

    def backend(graph, inputs):
        compiled_graphs.append(graph)
        return graph.forward

    def network():
        torch.manual_seed(0)
        return variational(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)), estimator=estimator)

    torch.compiler.reset()
    plain, net, x = network(), network(), torch.randn(5, 4)
    faster = torch.compile(net, backend=backend)
    for _ in range(10):
        first, second = plain(x), faster(x)
        assert torch.equal(first, second)
        first.sum().backward()
        second.sum().backward()
    assert len(compiled_graphs) == graphs
    for p, q in zip(plain.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    losses = [
        nelbo(n, x, x[:, :1], likelihood=ba.Gaussian(), num_data=5, mc_samples=2, antithetic=True)
        for n in (plain, faster)
    ]
    assert torch.equal(*losses)
    net.eval()
    assert torch.equal(faster(x), net(x))


def test_without_a_compiler_the_eager_code_does_the_work(monkeypatch):
    monkeypatch.setattr(noise, "has_compiler", lambda: False)
    compiled.available.cache_clear()
    monkeypatch.setattr(kernels, "normal_", None)
    net = variational(nn.Linear(120, 80), compile=True)
    try:
        with pytest.warns(RuntimeWarning, match="compile=True needs a C\\+\\+ compiler, found none"):
            net(torch.randn(2, 120))
    finally:
        compiled.available.cache_clear()
