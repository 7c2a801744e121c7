"""Two moons: where a classifier is undecided, and where its posterior disagrees with itself."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons

import bayesadam as ba
from bayesadam import population
from bayesadam.plots import COLOURS

points, labels = make_moons(200, noise=0.15, random_state=0)
x, y = torch.tensor(points, dtype=torch.float32), torch.tensor(labels)
likelihood = ba.Categorical()


def network():
    """Two hidden layers of 32 ReLU."""
    return torch.nn.Sequential(
        torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
    )


models = population.initialize(network, seeds=range(10))
nets = population.train(
    models, (x, y), likelihood=likelihood, method="vadam", epochs=60, batch_size=40, lr=0.02, temperature=0.1
)
side = 80
across, up = torch.meshgrid(torch.linspace(-3, 4, side), torch.linspace(-3, 3.5, side), indexing="xy")
grid = torch.stack([across.flatten(), up.flatten()], 1)
pred = ba.predict(models[0], ba.Mixture(nets.posteriors), grid, likelihood=likelihood, mc_samples=100)

figure, panels = plt.subplots(1, 2, figsize=(7, 3), layout="constrained", sharey=True)
for axes, name in zip(panels, ("entropy", "mutual_information"), strict=True):
    value = getattr(pred, name).view(side, side)
    shown = axes.contourf(across, up, value, levels=[0.1 * i for i in range(8)], cmap="Greys")
    for label, marker in enumerate("o^"):
        axes.scatter(*x[y == label].T, s=7, marker=marker, color=COLOURS[label])
    axes.set(title=f"{name.replace('_', ' ')} (nats)")
    figure.colorbar(shown, ax=axes)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
figure.savefig(folder / "moons.png", dpi=100)
