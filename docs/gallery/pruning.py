"""Pruning by signal-to-noise: accuracy on digits when more and more weights are zero."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import bayesadam as ba
from bayesadam import plots

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
torch.manual_seed(0)
train, test = torch.randperm(len(x)).split([1200, 597])
likelihood = ba.Categorical()


def network():
    """64-100-10 with ReLU."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))


def minibatches(epochs):
    """Of 80 digits."""
    for _ in range(epochs):
        yield from train[torch.randperm(len(train))].split(80)


point = network()
adam = torch.optim.Adam(point.parameters(), lr=3e-3)
for rows in minibatches(15):
    adam.zero_grad()
    likelihood.nll(point(x[rows]), y[rows]).backward()
    adam.step()

noisy = network()
net = ba.variational(
    noisy, prior=ba.priors.ScaleMixturePrior(pi=0.5, sigma1=1.0, sigma2=0.01), initial_std=0.02, estimator="local"
)
opt = torch.optim.Adam(net.parameters(), lr=2e-2)
for rows in minibatches(20):
    opt.zero_grad()
    net.loss(x[rows], y[rows], likelihood=likelihood, num_data=len(train)).backward()
    opt.step()

levels = [0.0, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98]
curves = {
    name: ba.pruning_curve(model, q, (x[test], y[test]), likelihood=likelihood, fractions=levels, by=by)
    for name, model, q, by in (
        ("Bayes by Backprop, signal-to-noise", noisy, net.posterior(), "signal_to_noise"),
        ("Badam, signal-to-noise", point, ba.badam(adam, point, num_data=len(train)), "signal_to_noise"),
        ("Adam, magnitude", point, ba.DiagonalGaussian.point_mass(point), "magnitude"),
    )
}
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
plots.pruning(axes, curves)
axes.legend(fontsize=8)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
figure.savefig(folder / "pruning.png", dpi=100)
