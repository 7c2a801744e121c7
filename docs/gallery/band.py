"""A curve with a gap in its data: independent weights are sure of it everywhere, a full covariance is not."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import bayesadam as ba
from bayesadam import plots, population

torch.manual_seed(0)
x = torch.cat([torch.linspace(-2, -0.7, 40), torch.linspace(0.7, 2, 40)]).unsqueeze(1)
y = torch.sin(2 * x) + 0.1 * torch.randn_like(x)
grid = torch.linspace(-3, 3, 200).unsqueeze(1)
likelihood = ba.Gaussian(noise_precision=100.0)


def network():
    """One hidden layer of 50 tanh."""
    return torch.nn.Sequential(torch.nn.Linear(1, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1))


models = population.initialize(network, seeds=range(10))
nets = population.train(
    models, (x, y), likelihood=likelihood, method="vadam", epochs=60, batch_size=20, lr=0.03, temperature=0.1
)
ensemble = ba.predict(models[0], ba.Mixture(nets.posteriors), grid, likelihood=likelihood, mc_samples=200)

model = models[0]
adam = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(300):
    adam.zero_grad()
    prior = sum(parameter.square().sum() for parameter in model.parameters()) / 2 / len(x)  # prior precision 1
    (likelihood.nll(model(x), y) + prior).backward()
    adam.step()
q = ba.posthoc.LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="full").posterior(
    prior_precision=1.0
)
laplace = ba.predict(model, q, grid, likelihood=likelihood, method="linearized")

figure, panels = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
for axes, pred, title in zip(
    panels, (ensemble, laplace), ("Vadam, an ensemble of 10", "Laplace, full covariance"), strict=True
):
    plots.regression_band(axes, grid.flatten(), pred, (x, y))
    axes.set(ylim=(-3.5, 3.5), title=title)
panels[0].legend(loc="upper center", ncols=2, fontsize=8)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
figure.savefig(folder / "band.png", dpi=100)
