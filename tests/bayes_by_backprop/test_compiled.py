"""A variational network under ``torch.compile``."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.bayes_by_backprop import variational


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
    torch.testing.assert_close(*([p.grad for p in each.parameters()] for each in (plain, net)))
    losses = [
        n.loss(x, x[:, :1], likelihood=ba.Gaussian(), num_data=5, mc_samples=2, antithetic=True)
        for n in (plain, faster)
    ]
    assert torch.equal(*losses)
    net.eval()
    assert torch.equal(faster(x), net(x))
