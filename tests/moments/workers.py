"""What two ranks do; each function runs in both processes and raises where it is wrong."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bayesadam as ba
from bayesadam import priors


def gradients(net, x, y, wrap):
    wrapper = None if wrap is None else wrap(net)
    net.loss(x, y, wrapper=wrapper, likelihood=ba.Gaussian(4.0), num_data=50).backward()
    return [p.grad.clone() for p in net.parameters() if p.requires_grad]


def data_parallel(rank, folder):
    """Two halves of a minibatch on two ranks have the gradient of the whole."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    half = slice(4 * rank, 4 * rank + 4)
    for options in ({"prior": priors.LearnedGaussianPrior().double(), "covariance": True}, {"weights": "bernoulli"}):
        net = ba.fawn(model, **options)
        expected = gradients(net, x, y, None)
        net.zero_grad()
        for got, grad in zip(gradients(net, x[half], y[half], DistributedDataParallel), expected, strict=True):
            torch.testing.assert_close(got, grad, rtol=1e-11, atol=1e-13)
        net.zero_grad()


def last_layer(rank, folder):
    """The same for a network with a variational last layer."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    half = slice(4 * rank, 4 * rank + 4)
    for covariance in ("full", "diagonal"):
        net = ba.variational_last_layer(model, covariance=covariance, prior=priors.LearnedGaussianPrior().double())
        expected = gradients(net, x, y, None)
        net.zero_grad()
        for got, grad in zip(gradients(net, x[half], y[half], DistributedDataParallel), expected, strict=True):
            torch.testing.assert_close(got, grad, rtol=1e-11, atol=1e-13)
        net.zero_grad()
