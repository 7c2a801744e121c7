"""Activation checkpointing: what runs again in the backward pass has the same draw, or is refused."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bayesadam as ba

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(20) % 3


class Residual(nn.Module):
    """A network with a bare parameter and a padding row, whose middle runs again if ``kinds`` has values of
    ``use_reentrant``: the first for the outer checkpoint, the second for one inside of it.
    """

    def __init__(self, *kinds):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.norm, self.gain = nn.LayerNorm(8), nn.Parameter(torch.ones(8))
        self.table = nn.Embedding(3, 8, padding_idx=1)
        self.kinds = kinds

    def inner(self, h):
        return torch.tanh(self.middle(h)) * self.gain + self.table(Y)

    def outer(self, h):
        h = self.norm(h)
        return h + (checkpoint(self.inner, h, use_reentrant=self.kinds[1]) if len(self.kinds) > 1 else self.inner(h))

    def forward(self, x):
        h = torch.tanh(self.first(x))
        h = checkpoint(self.outer, h, use_reentrant=self.kinds[0]) if self.kinds else self.outer(h)
        return self.last(h)


def gradients(net, **options):
    net.loss(X.to(net.model.gain.dtype), Y, likelihood=ba.Categorical(), num_data=20, **options).backward()
    return {name: p.grad for name, p in net.named_parameters()}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")  # of a checkpoint in a reentrant one
@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
@pytest.mark.parametrize("kinds", [(False,), (True,), (False, False), (True, True)], ids=str)
def test_the_second_run_has_the_draw_of_the_first(estimator, kinds):
    """Also where several draws, or a draw and its mirror image, wait for one backward pass."""
    for options in ({}, {"mc_samples": 2}, {"mc_samples": 2, "antithetic": True}):
        plain, again = (
            gradients(ba.variational(Residual(*those), initial_std=0.5, estimator=estimator), **options)
            for those in ((), kinds)
        )
        torch.testing.assert_close(again, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [False, True])
def test_the_model_as_a_whole_is_refused(kind):
    net = ba.variational(Residual())
    output = checkpoint(net, X.clone().requires_grad_(), use_reentrant=kind)
    with pytest.raises(RuntimeError, match=r"must not run again in a backward pass.* checkpoint parts inside of it"):
        output.sum().backward()


def test_other_models_are_run_again_as_before():
    net = ba.variational(Residual(), initial_std=0.5)
    net(X)
    for kind in (False, True):
        plain, again = Residual(), Residual(kind)
        for model in (plain, again):
            model(X).square().sum().backward()
        for expected, got in zip(plain.parameters(), again.parameters(), strict=True):
            assert torch.equal(got.grad, expected.grad)
