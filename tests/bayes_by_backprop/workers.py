"""What two ranks do; each function runs in both processes and raises where it is wrong."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bayesadam as ba
from bayesadam import priors
from bayesadam.bayes_by_backprop import variational


def gradients(net, x, y, wrap):
    wrapped = net if wrap is None else wrap(net)
    wrapped.loss(x, y, likelihood=ba.Categorical(), num_data=50, mc_samples=2).backward()
    return [p.grad for p in net.parameters()]


def data_parallel(rank, folder):
    """Two halves of a minibatch on two ranks have the gradient of the whole."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(3, (8,))
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    for prior in (
        2.0,
        priors.ScaleMixturePrior(pi=0.5, sigma1=1.0, sigma2=0.1),
        priors.LearnedGaussianPrior().double(),
    ):
        whole = variational(model, prior=prior, initial_std=0.3, seed=3)
        expected = [g.clone() for g in gradients(whole, x, y, None)]
        whole.zero_grad()
        half = slice(4 * rank, 4 * rank + 4)
        net = variational(model, prior=prior, initial_std=0.3, seed=3)
        for got, grad in zip(gradients(net, x[half], y[half], DistributedDataParallel), expected, strict=True):
            torch.testing.assert_close(got, grad, rtol=1e-11, atol=1e-13)
        net.zero_grad()
