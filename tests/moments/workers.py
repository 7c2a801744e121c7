"""What two ranks do; each function runs in both processes and raises where it is wrong."""

import torch
from torch import nn

import bayesadam as ba
from bayesadam import priors
from two_ranks import assert_halves_are_the_whole


def data_parallel(rank, folder):
    torch.manual_seed(0)
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    for make, options in (
        (ba.fawn, {"covariance": True, "prior": priors.LearnedGaussianPrior().double()}),
        (ba.fawn, {"weights": "bernoulli"}),
        (ba.variational_last_layer, {"covariance": "full", "prior": priors.LearnedGaussianPrior().double()}),
        (ba.variational_last_layer, {"covariance": "diagonal", "prior": priors.LearnedGaussianPrior().double()}),
    ):
        net = make(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double(), **options)
        assert_halves_are_the_whole(rank, net, x, y, likelihood=ba.Gaussian(4.0), num_data=50)


def bayes_by_backprop(rank, folder):
    torch.manual_seed(0)
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(3, (8,))
    mixture = priors.ScaleMixturePrior(pi=0.5, sigma1=1.0, sigma2=0.1)
    for prior in (2.0, mixture, priors.LearnedGaussianPrior().double()):
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
        net = ba.variational(model, prior=prior, initial_std=0.3, seed=3)
        assert_halves_are_the_whole(rank, net, x, y, likelihood=ba.Categorical(), num_data=50, mc_samples=2)
