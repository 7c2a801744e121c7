"""A curve with a gap in its data: the width of the band there, and its coverage of the true curve."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.demo.effort import Advance, Effort, Part, seed_of
from bayesadam.likelihoods import Gaussian
from bayesadam.likelihoods.base import seeded
from bayesadam.optim import IVON
from bayesadam.predictive import predict

NOISE = 0.1
POINTS = 40
"""Number of data points on each side of the gap."""
BATCH_SIZE = 16
LEFT, RIGHT = (-2.0, -0.5), (0.8, 2.0)
GRID = torch.linspace(-3.0, 3.0, 301)
DATA, GAP, BEYOND = "at the data", "in the gap", "beyond the ends"
WHERE = {
    DATA: ((LEFT[0] <= GRID) & (LEFT[1] >= GRID)) | ((RIGHT[0] <= GRID) & (RIGHT[1] >= GRID)),
    GAP: (LEFT[1] < GRID) & (RIGHT[0] > GRID),
    BEYOND: (LEFT[0] > GRID) | (RIGHT[1] < GRID),
}
ESTIMATOR, OPTIMIZER = "BayesianMLPRegressor", "IVON"


def true_curve(x: Tensor) -> Tensor:
    """Return the true curve, of which the data are noisy values."""
    return torch.sin(2.5 * x)


def compare_bands(effort: Effort, *, seed: int, advance: Advance) -> Part:
    """Fit the same data by the estimator, an ensemble with full covariances, and by one network, trained by IVON."""
    generator = torch.Generator().manual_seed(seed_of(seed, 3))
    x = torch.cat([low + (high - low) * torch.rand(POINTS, generator=generator) for low, high in (LEFT, RIGHT)])
    y = true_curve(x) + NOISE * torch.randn(len(x), generator=generator)
    found = {
        ESTIMATOR: _estimator(x, y, effort, seed_of(seed, 4), advance),
        OPTIMIZER: _ivon(x, y, effort, seed_of(seed, 4), advance),
    }
    rows = {name: _scores(predicted) for name, predicted in found.items()}
    return Part({"rows": rows}, {"data": (x, y), "predictions": found})


def _scores(predicted: Any) -> dict[str, dict[str, float]]:
    deviation = predicted.epistemic.flatten().sqrt()
    error = (predicted.mean.flatten() - true_curve(GRID)).abs()
    inside = error <= 1.96 * deviation
    return {
        "deviation": {name: float(deviation[where].mean()) for name, where in WHERE.items()},
        "true curve inside": {name: float(inside[where].double().mean()) for name, where in WHERE.items()},
    }


def _estimator(x: Tensor, y: Tensor, effort: Effort, seed: int, advance: Advance) -> Any:
    from bayesadam.sklearn import BayesianMLPRegressor

    def on_epoch(status: Any) -> None:
        advance("curve", status.epoch, status.epochs)

    options: dict[str, Any] = dict(effort.estimator)
    model = BayesianMLPRegressor(random_state=seed, **options)
    model.fit(x[:, None].numpy(), y.numpy(), on_epoch=on_epoch)
    advance("curve", 1, 1)
    return model.predictive(GRID[:, None].numpy())


def _ivon(x: Tensor, y: Tensor, effort: Effort, seed: int, advance: Advance) -> Any:
    with seeded(seed, torch.device("cpu")):
        network = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    likelihood = Gaussian(NOISE**-2)
    optimizer = IVON(
        network.named_parameters(), num_data=len(x), batch_size=BATCH_SIZE, total_steps=effort.curve_steps, seed=seed
    )
    optimizer.train()
    generator = torch.Generator().manual_seed(seed)
    for step in range(effort.curve_steps):
        rows = torch.randperm(len(x), generator=generator)[:BATCH_SIZE]
        optimizer.zero_grad()
        likelihood.nll(network(x[rows, None]), y[rows, None]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        advance("curve, IVON", step + 1, effort.curve_steps)
    optimizer.eval()
    return predict(network, optimizer.posterior(), GRID[:, None], likelihood=likelihood, mc_samples=64)
