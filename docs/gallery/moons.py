"""Two moons: where a classifier is undecided, and where its posterior disagrees with itself."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons

import bayesadam as ba
from bayesadam.plots import COLOURS

points, labels = make_moons(200, noise=0.15, random_state=0)
x, y = torch.tensor(points, dtype=torch.float32), torch.tensor(labels)
likelihood = ba.Categorical()


torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2)
)
epochs, size = 300, 40
opt = ba.BayesAdam(
    model.named_parameters(),
    num_data=len(x),
    batch_size=size,
    total_steps=epochs * len(x) // size,
)
for _ in range(epochs):
    for rows in torch.randperm(len(x)).split(size):
        with opt.sampled_params():
            opt.zero_grad()
            likelihood(model(x[rows]), y[rows]).backward()
        opt.step()

side = 80
across, up = torch.meshgrid(torch.linspace(-3, 4, side), torch.linspace(-3, 3.5, side), indexing="xy")
grid = torch.stack([across.flatten(), up.flatten()], 1)
pred = ba.predict(model, opt.posterior(), grid, likelihood=likelihood, mc_samples=200)

figure, panels = plt.subplots(1, 2, figsize=(7, 3), layout="constrained", sharey=True)
for axes, name, step in zip(panels, ("entropy", "mutual_information"), (0.1, 0.04), strict=True):
    value = getattr(pred, name).view(side, side)
    shown = axes.contourf(across, up, value, levels=[step * i for i in range(8)], cmap="Greys", extend="max")
    for label, marker in enumerate("o^"):
        axes.scatter(*x[y == label].T, s=7, marker=marker, color=COLOURS[label])
    axes.set(title=f"{name.replace('_', ' ')} (nats)")
    figure.colorbar(shown, ax=axes)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
figure.savefig(folder / "moons.png", dpi=100)
