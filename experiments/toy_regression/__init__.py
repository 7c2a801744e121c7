"""Kessler et al. 2018, Fig. 1: the predictions of the methods away from the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import Tensor, nn

import bayesadam as ba
from experiments.framework import Context, Report, Told, Unit, pick
from experiments.plots import panels
from experiments.tables import Number, frame

TITLE = "Regression with a gap on both sides"
SOURCE = "Kessler et al. 2018, Fig. 1"

PROTOCOL = {"seed": 0, "hidden": 50, "batch_size": 128, "steps": 12_000}
GIVEN = {"prior_precision": 1.0, "noise_sd": 0.065}
BADAM = {"lr": 0.001, "l2": 1e-4}
SETTINGS: dict[str, dict[str, Any]] = {
    "gp": {"restarts": 2},
    "badam": {**BADAM, "num_data": [round(10 ** (k / 2)) for k in range(4, 19)]},
    "mc-dropout": {"lr": 0.003, "l2": 1e-6, "dropout": 0.01},
    "bbb": {**GIVEN, "lr": 0.003, "initial_std": 0.02, "temperature": 0.1},
    "vadam": {**GIVEN, "lr": 0.003, "initial_precision": 2500.0, "temperature": 0.1},
    "anchored": {**GIVEN, "lr": 0.01, "members": 20},
    "badam-paper": {**BADAM, "method": "badam", "num_data": [200]},
    "badam-code": {**BADAM, "method": "badam", "num_data": [200**2]},
}
"""Settings of the methods. Those with a given noise have the standard deviation of the residuals of the first two. The
paper's covariance is ``1 / (N sqrt(v))``; the authors' code divides by ``N`` once more.
"""
LABELS = {
    "gp": "Gaussian process",
    "badam": "Badam, linearised",
    "mc-dropout": "MC dropout",
    "bbb": "Bayes by Backprop",
    "vadam": "Vadam",
    "anchored": "anchored ensemble",
    "badam-paper": "Badam, N = 200 as in the paper",
    "badam-code": "Badam, N squared as in the authors' code",
}
COLUMNS = {
    "nll": ("NLL inside", 3),
    "rmse": ("RMSE inside", 4),
    "noise_sd": ("noise sd", 3),
    "sd_inside": ("sd of f: inside", 3),
    "sd_near": ("up to 0.25 outside", 3),
    "sd_far": ("farther", 3),
    "covered_inside": ("f within 2 sd: inside", 2),
    "covered_outside": ("outside", 2),
}
BLUE, ORANGE = "#0072B2", "#D55E00"

Pair = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Predict = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Function from inputs ``(n, 1)`` to mean, variance of the function, and variance of the noise, each ``(n,)``."""


MARGIN = 0.02
"""Largest loss of NLL, in nats per data point, of the chosen number of pseudo-observations; see :func:`badam`."""


def truth(x: Tensor) -> Tensor:
    """Return the function without noise."""
    return x + 0.3 * torch.sin(2 * math.pi * x) + 0.3 * torch.sin(4 * math.pi * x)


@dataclass(frozen=True)
class Problem:
    """Inputs and targets ``(n, 1)``: 200 on a grid to train on, 200 others to tune on, 1,000 to test on."""

    train: Pair
    validation: Pair
    test: Pair

    @classmethod
    def draw(cls, seed: int) -> Problem:
        """Draw the data; all inputs are in [0, 0.5).

        Noise of standard deviation 0.02 is added both inside and outside the sines.
        """
        generator = torch.Generator().manual_seed(seed)
        grid = torch.arange(200)[:, None] / 400
        inputs = [grid, *(0.5 * torch.rand(count, 1, generator=generator) for count in (200, 1000))]
        return cls(*((x, truth(x + 0.02 * torch.randn(x.shape, generator=generator))) for x in inputs))


def panel(problem: Problem, predict: Predict, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return scores, and the predictions on [-0.5, 1.2)."""
    x, y = problem.test
    mean, function, noise = predict(x)
    nll = nn.functional.gaussian_nll_loss(mean, y[:, 0], function + noise, full=True)
    grid = -0.5 + 1.7 * torch.arange(400)[:, None] / 400
    center, spread, noise = predict(grid)
    inside = (grid[:, 0] >= 0) & (grid[:, 0] < 0.5)
    near = ~inside & (grid[:, 0] >= -0.25) & (grid[:, 0] < 0.75)
    covered = (truth(grid)[:, 0] - center).abs() <= 2 * spread.sqrt()
    return {
        **found,
        "rmse": (mean - y[:, 0]).square().mean().sqrt(),
        "nll": nll,
        "sd_inside": spread[inside].sqrt().mean(),
        "sd_near": spread[near].sqrt().mean(),
        "sd_far": spread[~inside & ~near].sqrt().mean(),
        "covered_inside": covered[inside].double().mean(),
        "covered_outside": covered[~inside].double().mean(),
        "x": grid[:, 0],
        "mean": center,
        "sd": spread.sqrt(),
        "total_sd": (spread + noise).sqrt(),
        "train": [values[:, 0] for values in problem.train],
    }


def network(config: Mapping[str, Any], seeded: bool = True) -> nn.Sequential:
    """Create a network with two hidden layers of tanh, as in the authors' code, and Xavier's initial weights.

    The weights are those of the config's seed, or from the current state of torch's generator.
    """
    if seeded:
        torch.manual_seed(config["seed"])
    hidden, rate = config["hidden"], config.get("dropout", 0.0)
    layers: list[nn.Module] = []
    for inputs in (1, hidden):
        layers += [nn.Linear(inputs, hidden), nn.Tanh(), *([nn.Dropout(rate)] if rate else [])]
    model = nn.Sequential(*layers, nn.Linear(hidden, 1))
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return model


def gp(problem: Problem, config: Mapping[str, Any]) -> tuple[Predict, dict[str, Any]]:
    """Fit a Gaussian process with a squared exponential kernel, with hyper-parameters by marginal likelihood."""
    kernel = ConstantKernel(1.0) * RBF(0.2) + WhiteKernel(0.01)
    process = GaussianProcessRegressor(
        kernel, n_restarts_optimizer=config["restarts"], random_state=config["seed"], normalize_y=True
    )
    x, y = problem.train
    process.fit(x.numpy(), y[:, 0].numpy())
    noise = process.kernel_.k2.noise_level * float(y.var(correction=0))

    def predict(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, sd = (torch.as_tensor(values) for values in process.predict(inputs.numpy(), return_std=True))
        return mean, (sd.square() - noise).clamp_min(0.0), torch.full_like(mean, noise)

    return predict, {"noise_sd": math.sqrt(noise), "kernel": str(process.kernel_)}


def fit(problem: Problem, config: Mapping[str, Any], progress: Told) -> tuple[Predict, dict[str, Any]]:
    """Fit one of the networks, and return its predictions and what was chosen.

    Badam and MC dropout minimise the paper's loss: the mean squared error plus ``l2 / 2`` times the squared norm of the
    weights. Bayes by Backprop uses local reparameterisation. The anchored ensemble's last layer is integrated out.
    """
    method = config["method"]
    if method in ("badam", "mc-dropout"):
        return _least_squares(problem, config, progress)
    likelihood, size, model = ba.Gaussian(config["noise_sd"] ** -2), len(problem.train[0]), network(config)
    found = pick(config, "noise_sd")
    if method == "anchored":
        options = pick(config, "members", "prior_precision", "steps", "batch_size", "lr", "seed")
        make = partial(network, config, seeded=False)
        ensemble = ba.anchored_ensemble(make, problem.train, likelihood=likelihood, progress=False, **options)
        return _predictor(model, ensemble, likelihood, method="auto"), found
    if method == "bbb":
        prior = ba.priors.GaussianPrior(config["prior_precision"])
        net = ba.variational(model, prior=prior, estimator="local", **pick(config, "initial_std", "seed"))
        loss = partial(net.loss, likelihood=likelihood, num_data=size, temperature=config["temperature"])
        _train(problem, config, torch.optim.Adam(net.parameters(), lr=config["lr"]), loss, progress)
        return _predictor(model, net.posterior(), likelihood), found
    options = pick(config, "lr", "prior_precision", "initial_precision", "temperature", "seed")
    optimizer = ba.Vadam(model.named_parameters(), num_data=size, **options)
    optimizer.train()
    _train(problem, config, optimizer, lambda x, y: likelihood.nll(model(x), y), progress)
    optimizer.eval()
    return _predictor(model, optimizer.posterior(model), likelihood), found


def _train(
    problem: Problem, config: Mapping[str, Any], optimizer: torch.optim.Optimizer, loss: Loss, progress: Told
) -> None:
    """Train with minibatches, each of which is drawn from a new permutation of the training data."""
    generator = torch.Generator().manual_seed(config["seed"])
    x, y = problem.train
    for step in range(config["steps"]):
        rows = torch.randperm(len(x), generator=generator)[: config["batch_size"]]
        optimizer.zero_grad()
        torch.autograd.backward(loss(x[rows], y[rows]))
        optimizer.step()
        if step % 100 == 0:
            progress(step, config["steps"])


def _least_squares(problem: Problem, config: Mapping[str, Any], progress: Told) -> tuple[Predict, dict[str, Any]]:
    """Fit MC dropout, which is used after both hidden layers, also at test time; or Badam with linearised predictions
    and as few pseudo-observations as the validation data allow.

    In the region of the data a narrower posterior is never worse, so that the largest number of pseudo-observations has
    the best NLL there. The smallest number whose NLL is worse by at most ``MARGIN`` is used.
    """
    model = network(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"], weight_decay=config["l2"])
    _train(problem, config, optimizer, lambda x, y: nn.functional.mse_loss(model(x), y), progress)
    model.eval()
    if config["method"] == "mc-dropout":
        masks = ba.MCDropout(model)
        noise = _residual_variance(problem, lambda x: _predictor(model, masks, ba.Gaussian(1.0))(x)[0])
        return _predictor(model, masks, ba.Gaussian(1.0 / noise)), {"noise_sd": math.sqrt(noise)}
    noise = _residual_variance(problem, lambda x: model(x).detach()[:, 0])
    likelihood, make = ba.Gaussian(1.0 / noise), partial(ba.badam, optimizer, model)
    options: dict[str, Any] = {"scale": [1.0], "temperature": [1.0], "method": "linearized", "progress": False}
    options |= {"likelihood": likelihood, "candidates": {"num_data": config["num_data"], "prior_precision": [0.0]}}
    tuned = ba.tune_posterior(make, model, problem.validation, **options)
    chosen = min(row["num_data"] for row in tuned.table if row["score"] <= tuned.score + MARGIN)
    found = {"noise_sd": math.sqrt(noise), "num_data": chosen, "validation": [dict(row) for row in tuned.table]}
    return _predictor(model, make(num_data=chosen, prior_precision=0.0), likelihood, method="linearized"), found


def _residual_variance(problem: Problem, mean: Callable[[Tensor], Tensor]) -> float:
    x, y = problem.train
    return float((y[:, 0] - mean(x)).square().mean())


def _predictor(
    model: nn.Module,
    distribution: ba.posterior.NetworkDistribution,
    likelihood: ba.Gaussian,
    method: str = "monte_carlo",
) -> Predict:
    def predict(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = ba.predict(model, distribution, x, likelihood=likelihood, method=method, mc_samples=500)
        assert isinstance(found, ba.predictive.RegressionPredictive)
        return found.mean[:, 0], found.epistemic[:, 0], found.aleatoric[:, 0]

    return predict


def units() -> list[Unit]:
    """Return one unit per panel, and two with the published widths of Badam."""
    return [Unit(name, {**PROTOCOL, "method": name, **own}) for name, own in SETTINGS.items()]


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Fit one method, and return its scores and its predictions on the grid."""
    config, problem = unit.config, Problem.draw(unit.config["seed"])
    fitted = gp(problem, config) if config["method"] == "gp" else fit(problem, config, context.progress)
    return panel(problem, *fitted)


def report(results: Mapping[str, Any]) -> Report:
    """Return a table, and a figure with six panels."""
    rows = [
        [LABELS[key], *(Number(result[name], None, digits) for name, (_, digits) in COLUMNS.items())]
        for key, result in results.items()
    ]
    title = "Inside: [0, 0.5), where the data are; outside: the rest of [-0.5, 1.2)"
    header = ["method", *(name for name, _ in COLUMNS.values())]
    return Report({title: frame(header, rows)}, {"panels": _figure(results)})


def _figure(results: Mapping[str, Any]) -> Figure:
    """Plot the first six methods in two rows, so that the panels are wide enough on a page."""
    figure, axes = panels(2, 3, 11, 6.2, sharex=True, sharey=True)
    for axis, (key, found) in zip(axes.flat, results.items(), strict=False):
        axis.set_title(LABELS[key], fontsize=10)
        axis.set(xlim=(-0.5, 1.2), ylim=(-2.8, 2.8))
        x, mean, sd, total = (np.asarray(found[name], float) for name in ("x", "mean", "sd", "total_sd"))
        axis.fill_between(x, mean - total, mean + total, color=BLUE, alpha=0.15, lw=0, label="with noise, 1 sd")
        axis.fill_between(x, mean - sd, mean + sd, color=BLUE, alpha=0.35, lw=0, label="of the function, 1 sd")
        axis.plot(x, mean, color=BLUE, lw=1.8, label="mean")
        axis.plot(x, truth(torch.from_numpy(x)), color=ORANGE, lw=1.2, ls="--", label="truth")
        axis.plot(*found["train"], ".", color="black", markersize=2, label="data")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return figure
