"""Reentrant activation checkpointing hides weights from derivatives: refused by name where derivatives are taken."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bayesadam as ba
from bayesadam.posthoc import LaplaceApproximation
from posterior.kinds import around

LIKELIHOOD = ba.Gaussian(1.0)


class Checkpointed(nn.Module):
    """The hidden layer, and the output layer if ``whole``, are computed a second time in the backward pass."""

    def __init__(self, *, reentrant, whole=False):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.output = nn.Linear(3, 8), nn.Linear(8, 2)
        self.reentrant, self.whole = reentrant, whole

    def forward(self, x):
        def body(x):
            return torch.tanh(self.hidden(x))

        x = checkpoint(body, x, use_reentrant=self.reentrant)
        return checkpoint(self.output, x, use_reentrant=self.reentrant) if self.whole else self.output(x)


def data(*, requires_grad=False):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(10, 3, generator=generator), torch.randn(10, 2, generator=generator)
    return x.requires_grad_(requires_grad), y


REFUSED = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")


@REFUSED
@pytest.mark.parametrize("requires_grad", [False, True])
def test_it_is_refused(requires_grad):
    model, pair = Checkpointed(reentrant=True), data(requires_grad=requires_grad)
    message = "must be the non-reentrant one .* got a .* with use_reentrant=True"
    for structure, curvature in (("diagonal", "ggn"), ("kron", "ggn"), ("full", "empirical_fisher")):
        with pytest.raises(RuntimeError, match=message):
            LaplaceApproximation(model, pair, likelihood=LIKELIHOOD, structure=structure, curvature=curvature)
    for checkpointed in (model, Checkpointed(reentrant=True, whole=True)):
        with pytest.raises(RuntimeError, match=message):
            ba.predict(checkpointed, around(model), pair[0], likelihood=LIKELIHOOD, method="linearized")


def test_the_other_kind_changes_nothing():
    plain = Checkpointed(reentrant=False)
    plain.forward = lambda x: plain.output(torch.tanh(plain.hidden(x)))
    checkpointed = Checkpointed(reentrant=False)
    x, y = data()
    expected, found = (
        ba.predict(model, around(model), x, likelihood=LIKELIHOOD, method="linearized").epistemic
        for model in (plain, checkpointed)
    )
    assert expected.min() > 0
    torch.testing.assert_close(found, expected)
    laplace = [
        ba.laplace(model, (x, y), likelihood=LIKELIHOOD, structure="full", prior_precision=100.0)
        for model in (plain, checkpointed)
    ]
    torch.testing.assert_close(laplace[1].variance, laplace[0].variance)


@REFUSED
def test_where_no_derivative_of_a_hidden_weight_is_wanted_it_is_fine():
    """The last layer alone is random, and what is before it may be checkpointed in any way."""
    options = {"likelihood": LIKELIHOOD, "structure": "last_layer", "prior_precision": 1.0}
    found, expected = (ba.laplace(Checkpointed(reentrant=r), data(), **options) for r in (True, False))
    torch.testing.assert_close(found.variance, expected.variance)
    model = Checkpointed(reentrant=True)
    whole, last = around(model), ("output.weight", "output.bias")
    random = ba.DiagonalGaussian(*({name: part[name] for name in last} for part in (whole.mean, whole.variance)))
    fixed = {name: value for name, value in whole.mean.items() if name not in last}
    q = ba.posterior.PartialGaussian(random, fixed)
    x, _ = data()
    assert ba.predict(model, q, x, likelihood=LIKELIHOOD, method="linearized").epistemic.min() > 0
