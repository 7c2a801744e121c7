"""Khan et al. 2018, Fig. 2a: logistic regression with two weights, where the posterior can be seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

import bayesadam as ba
from experiments.framework import Context, Report, Told, Unit
from experiments.logistic_regression import Array, Problem, mf_exact, symmetric_kl
from experiments.logistic_regression.methods import VON, fit, harmonic, settings
from experiments.logistic_regression.pages import COLOURS, quantiles, toy, values
from experiments.plots import panels
from experiments.tables import Number, frame

TITLE = "Logistic regression with two weights"
SOURCE = "Khan et al. 2018, Fig. 2a"

DRAWS, SHOWN = list(range(20)), 13
"""The draws of the data, and the one in the figure, whose MF-Exact is nearest to the published one."""
PRIOR = 0.01
"""Prior precision of both weights."""
METHODS = {
    "mf-exact": ("MF-Exact", "MF-Exact", "-"),
    "von": ("VON", "VON", "--"),
    "vogn-1": ("VOGN-1", "VOGN", "-"),
    "vadam-matlab": ("Vadam, MATLAB step", "Vadam, MATLAB step", "-"),
    "vadam": ("Vadam, the paper's step", "Vadam", "-"),
    "von-full": ("VON, full covariance", "VON", ":"),
}
"""Label, colour and line style, by unit."""
PUBLISHED = {
    "MF-Exact": ("MF-Exact", "MF-Exact"),
    "VOGN-1": ("VOGN-1", "VOGN"),
    "Vadam": ("Vadam, MATLAB step", "Vadam, MATLAB step"),
}
"""Label and colour, by the name in the paper."""


def units() -> list[Unit]:
    """Return one unit per method, each on all draws of the data at once."""
    vadam = settings("vadam", 10, 500_000, 0.1, 0.1, decay=0.55)
    own: dict[str, dict[str, Any]] = {
        "mf-exact": {"method": "mf-exact"},
        "von": VON,
        "von-full": {**VON, "method": "von-full"},
        "vogn-1": {**vadam, "method": "vogn", "batch_size": 1},
        "vadam-matlab": {**vadam, "method": "vadam-matlab"},
        "vadam": vadam,
    }
    return [Unit(key, {**config, "draws": [SHOWN] if key == "von-full" else DRAWS}) for key, config in own.items()]


def draw(seed: int) -> Problem:
    """Draw 30 points of class 1 around (1, 5), deviation 1, and 30 of class 0 around (-5, 1), deviation 2.2.

    The published points were drawn with MATLAB's old generators. NumPy's generator gives different points.
    """
    generator = np.random.RandomState(seed)  # its streams do not change between versions
    positive = generator.normal((1.0, 5.0), 1.0, (30, 2))
    negative = generator.normal((-5.0, 1.0), 2.2, (30, 2))
    y = np.repeat([1.0, 0.0], 30)
    return Problem(np.r_[positive, negative], y, np.empty((0, 2)), np.empty(0), np.full(2, PRIOR), False)


def grid(problem: Problem, reach: float, step: float) -> tuple[Array, Array]:
    """Return the exact posterior on a square grid: the axis ``(n,)``, and masses ``(n, n)`` that add up to 1.

    Rows are values of the second weight, columns of the first.
    """
    axis = np.arange(-reach, reach + step / 2, step)
    first, second = np.meshgrid(axis, axis)
    weights = np.stack([first.ravel(), second.ravel()])
    logits = problem.x @ weights
    log_joint = (problem.y[:, None] * logits - np.logaddexp(0.0, logits)).sum(0)
    log_joint -= 0.5 * (problem.prior[:, None] * weights**2).sum(0)
    mass = np.exp(log_joint - log_joint.max())
    return axis, (mass / mass.sum()).reshape(first.shape)


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Return means, standard deviations and divergences from MF-Exact, or means and covariances."""
    config = unit.config
    problems = [draw(seed) for seed in config["draws"]]
    if config["method"] == "von-full":
        return {"runs": [_full(problem, config, context.progress) for problem in problems]}
    exact = [mf_exact(problem.x, problem.y, problem.prior) for problem in problems]
    found = exact
    if config["method"] != "mf-exact":
        found = fit(problems, config, config["draws"], start=1.0, progress=context.progress)
    return {
        "runs": [
            {"mean": q.mean, "deviation": q.deviation, "symmetric_kl": symmetric_kl(q, p)}
            for q, p in zip(found, exact, strict=True)
        ]
    }


def _full(problem: Problem, config: Mapping[str, Any], progress: Told) -> dict[str, Any]:
    """Run the library's VON with a full covariance, with the same schedule and the same averaging."""
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.ones_(model.weight)
    x, y = torch.from_numpy(problem.x), torch.from_numpy(problem.y[:, None])
    prior = float(problem.prior[0])
    optimizer = ba.DenseVON(
        model.named_parameters(),
        config["lr"],
        num_data=len(y),
        betas=(0.0, 1.0 - config["rate"]),
        prior_precision=prior,
        initial_precision=1.0 + prior,
        seed=config["draws"][0],
    )
    likelihood, steps = ba.Bernoulli(), config["iterations"]
    begin = steps - math.ceil(config["averaged"] * steps)
    mean, precision = np.zeros(2), np.zeros((2, 2))

    decay = partial(harmonic, float(config["half_life"]))
    schedulers: list[Any] = [torch.optim.lr_scheduler.LambdaLR(optimizer, decay), ba.BetaScheduler(optimizer, decay)]
    for step in range(steps):
        optimizer.step(lambda: likelihood(model(x), y))
        for scheduler in schedulers:
            scheduler.step()
        if step >= begin:
            found: Any = optimizer.posterior()  # a DenseGaussian
            mean += found.mean["weight"].numpy().ravel()
            precision += torch.cholesky_inverse(found.scale_tril).numpy()
        if step % 100 == 0:
            progress(step, steps)
    count = steps - begin
    return {"mean": mean / count, "covariance": np.linalg.inv(precision / count)}


def report(results: Mapping[str, Any]) -> Report:
    """Return posteriors over all draws, which differ more than the methods, and those of the draw in the figure."""
    shapes, shown = [], []
    exact = results["mf-exact"]["runs"]
    for key, (label, _, _) in METHODS.items():
        mean, covariance = _moments(results[key])
        shown.append([label, *(Number(value, None, 2) for i in (0, 1) for value in (mean[i], covariance[i][i] ** 0.5))])
        if key in ("mf-exact", "von-full"):
            continue
        row: list[Any] = [label]
        for name in ("mean", "deviation"):
            pairs = zip(results[key]["runs"], exact, strict=True)
            ratios = np.array([np.array(run[name]) / np.array(best[name]) for run, best in pairs])
            row += [Number(quantiles(ratios[:, weight].tolist())[1], None, 2) for weight in (0, 1)]
        low, median, high = quantiles(values(results[key], "symmetric_kl"))
        shapes.append([*row, Number(median), f"{low:.2g} to {high:.2g}"])
    for label in ("VOGN-1", "Vadam"):
        numbers = [
            Number(toy(label)[name] / toy("MF-Exact")[name], None, 2) for name in ("mu_1", "mu_2", "sd_1", "sd_2")
        ]
        shapes.append([f"paper, its one draw: {label}", *numbers, None, ""])
    header = ["method", "mean 1", "mean 2", "deviation 1", "deviation 2", "symmetric KL", "its quartiles"]
    tables = {
        "Posterior relative to MF-Exact, medians over the draws of the data": frame(header, shapes),
        "The draw of the figure": frame(["method", "mean 1", "deviation 1", "mean 2", "deviation 2"], shown),
    }
    return Report(tables, {"posteriors": _figure(results)})


def _moments(result: Mapping[str, Any]) -> tuple[list[float], Any]:
    """Return mean and covariance of the run on the draw in the figure."""
    run = result["runs"][SHOWN if len(result["runs"]) > 1 else 0]
    return run["mean"], run.get("covariance") or np.diag(np.square(run["deviation"]))


def _figure(results: Mapping[str, Any]) -> Figure:
    """Plot our draw on the left, and on the right the published ellipses of a draw whose contours are unknown."""
    figure, axes = panels(1, 2, 11, 5.2, grid="", sharex=True, sharey=True)
    left, right = axes[0]
    axis, mass = grid(draw(SHOWN), 30.0, 0.25)
    levels = [0.02, 0.05, 0.1, 0.2, 0.4, 0.7]
    left.contour(axis, axis, mass / mass.max(), levels=levels, colors="0.7", linewidths=0.8)
    best = np.unravel_index(mass.argmax(), mass.shape)
    for key, (label, colour, line) in METHODS.items():
        _ellipse(left, *_moments(results[key]), COLOURS[colour], line, label)
    left.plot(axis[best[1]], axis[best[0]], "*", color="0.3", markersize=9, label="MAP", linestyle="")
    left.set_title("ours: the exact posterior (grey) and ellipses of 1 sd", fontsize=10)
    for name, (label, colour) in PUBLISHED.items():
        found = toy(name)
        covariance = np.diag([found["sd_1"] ** 2, found["sd_2"] ** 2])
        _ellipse(right, [found["mu_1"], found["mu_2"]], covariance, COLOURS[colour], "-", label)
    peak = toy("MAP on the 0.5 grid")
    right.plot(peak["mu_1"], peak["mu_2"], "*", color="0.3", markersize=9, label="MAP", linestyle="")
    right.set_title("paper, another draw of the data", fontsize=10)
    for panel in (left, right):
        panel.set_xlabel("weight 1")
        panel.legend(fontsize=8, loc="upper left", frameon=False)
    left.set(ylabel="weight 2", xlim=(0, 22), ylim=(0, 12))
    return figure


def _ellipse(axis: Axes, mean: list[float], covariance: Any, colour: str, line: str, label: str) -> None:
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    spread, vectors = np.linalg.eigh(np.array(covariance))
    circle = np.stack([np.cos(angle), np.sin(angle)])
    points = np.array(mean)[:, None] + vectors @ (np.sqrt(spread)[:, None] * circle)
    axis.plot(*points, color=colour, linestyle=line, linewidth=1.8, label=label)
    axis.plot(*mean, "o", color=colour, markersize=4)
