"""Noise that differs from place to place: FAWN's variance of the weights describes it, in one pass without sampling."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import bayesadam as ba
from bayesadam.plots import COLOURS

torch.manual_seed(0)
x = torch.rand(300, 1) * 4 - 2
y = torch.sin(2 * x) + 0.25 * x.abs() * torch.randn_like(x)
grid = torch.linspace(-2, 2, 200).unsqueeze(1)

figure, panels = plt.subplots(1, 2, figsize=(7, 3), layout="constrained", sharey=True)
for axes, objective in zip(panels, ("ropd", "vi"), strict=True):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(1, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))
    net, likelihood = ba.fawn(model), ba.Gaussian(10.0, learned=True)
    opt = torch.optim.Adam([*net.parameters(), *likelihood.parameters()], lr=2e-2)
    for _ in range(200):
        opt.zero_grad()
        net.loss(x, y, likelihood=likelihood, num_data=len(x), objective=objective).backward()
        opt.step()
    pred = ba.predict(model, net.posterior(), grid, likelihood=likelihood, method="moments")
    mean, std = pred.mean.flatten().detach(), pred.variance.sqrt().flatten().detach()
    at = grid.flatten()
    axes.fill_between(at, mean - 2 * std, mean + 2 * std, color=COLOURS[0], alpha=0.2, lw=0, label="2 sd")
    axes.plot(at, mean, color=COLOURS[0], lw=2, label="mean")
    axes.scatter(x, y, s=4, color="black")
    axes.set(title={"ropd": "predictive density", "vi": "variational inference"}[objective], xlabel="x")
panels[0].legend(fontsize=8)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
figure.savefig(folder / "scatter.png", dpi=100)
