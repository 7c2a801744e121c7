"""Samples of linearised networks with more outputs than a covariance is computed for."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.predictive.linearized import linearized_outputs
from bayesadam.predictive.plan import MOST_OUTPUTS, Options
from bayesadam.predictive.tangents import outputs_at_tangents


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.reader, self.last = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.reader(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.layer(x).mean(1))


def convolutional():
    norm = nn.BatchNorm2d(4)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


NETWORKS = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3)), (6, 4)),
    "convolutional": (convolutional, (6, 1, 8, 8)),
    "recurrent": (Recurrent, (6, 5, 4)),
    "attentive": (Attentive, (6, 5, 4)),
}


def made(network):
    make, shape = NETWORKS[network]
    torch.manual_seed(0)
    net = make()
    mean = {name: p.detach().clone() for name, p in net.named_parameters()}
    q = ba.DiagonalGaussian(mean, {name: torch.full_like(value, 1e-3) for name, value in mean.items()})
    return net, q, torch.randn(shape)


@pytest.mark.parametrize("network", NETWORKS)
def test_samples_have_the_mean_and_the_covariance_of_the_linearised_network(network):
    net, q, x = made(network)
    options = Options(ba.Categorical(), mc_samples=2_000)
    center, samples = outputs_at_tangents(net, q, x, options)
    expected, covariance = linearized_outputs(net, q, x, options)
    torch.testing.assert_close(center, expected)
    deviations = samples - center
    found = torch.einsum("snk,snl->nkl", deviations, deviations) / len(deviations)
    scale = covariance.diagonal(dim1=1, dim2=2).sqrt()
    assert ((found - covariance).abs() < 0.12 * scale[:, :, None] * scale[:, None, :]).all()
    assert all(torch.equal(p, q.mean[name]) for name, p in net.named_parameters())


def test_a_row_of_many_outputs_is_predicted_by_samples_of_the_tangent():
    """In a network that is linear in its weights they are those of the network itself."""
    net = nn.Linear(3, MOST_OUTPUTS + 1)
    mean = {name: p.detach().clone() for name, p in net.named_parameters()}
    q = ba.DiagonalGaussian(mean, {name: torch.full_like(value, 1e-2) for name, value in mean.items()})
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    pair = [
        ba.predict(net, q, x, likelihood=ba.Categorical(), method=m, mc_samples=5)
        for m in ("linearized", "monte_carlo")
    ]
    torch.testing.assert_close(pair[0].log_probs, pair[1].log_probs)
    with pytest.raises(ValueError, match=f"at most {MOST_OUTPUTS} outputs"):
        ba.predict(net, q, x, likelihood=ba.Categorical(), method="linearized", link="probit")


def test_an_operation_without_the_derivative_is_named():
    class Rounds(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Net(nn.Linear):
        def forward(self, x):
            return Rounds.apply(super().forward(x))

    net = Net(3, 2)
    q = ba.DiagonalGaussian.point_mass(net)
    with pytest.raises(RuntimeError, match="model must have forward-mode derivatives"):
        outputs_at_tangents(net, q, torch.ones(1, 3), Options(ba.Categorical(), mc_samples=1))
