"""Khan et al. 2018, Fig. 7: does variational optimisation find the flat minimum of a function of two variables?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import bayesadam as ba
from experiments.framework import Context, Report, Unit
from experiments.plots import panels
from experiments.tables import Number, frame

TITLE = "Flat minima by variational optimisation"
SOURCE = "Khan et al. 2018, Fig. 7"

PROTOCOL: dict[str, Any] = {
    "steps": 2000,
    "starts": 200,
    "tuning_sets": [100, 101, 102, 103, 104],
    "test_sets": list(range(10)),
    "lr": [0.001, 0.003, 0.01, 0.03, 0.1],
    "path_every": 5,
}
VARIATIONAL = {"num_data": [1.0, 10.0, 100.0], "prior_precision": 1.0, "initial_sd": 0.3}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "gradient-descent": ("gradient descent", {}),
    "adam": ("Adam", {}),
    "vadam": ("Vadam, temperature 1", VARIATIONAL),
    "vadagrad": ("VadaGrad, temperature 0", VARIATIONAL),
    "annealed": ("Vadam to VadaGrad, annealed", VARIATIONAL),
}
"""Label and settings of the methods."""

LINE, CENTRE, DEEP = 0.02, 0.2, -0.99
"""Bounds for the end of a descent: it is on the line if ``|x|`` is below the first, in the widest part of that valley
if the distance from the origin is below the second, and in any minimum if ``F`` is below the third.
"""
SHOWN = ((-0.7, 0.3), (0.6, -0.5), (0.5, 0.7), (-0.4, -0.8))
"""Four starts of the paths in the figure, away from the line."""
ORANGE = "#D55E00"


def units() -> list[Unit]:
    """Return one unit per method."""
    return [Unit(name, {**PROTOCOL, "method": name, **own}) for name, (_, own) in METHODS.items()]


def objective(points: Tensor) -> Tensor:
    """Return ``F = -h`` at points ``(..., 2)``. Its minimum -1 is on the line ``x = 0`` and at isolated points."""
    x, y = points.unbind(-1)
    first = x * torch.sin(20 * y) + y * torch.sin(20 * x)
    second = x * torch.cos(10 * y) - y * torch.sin(10 * x)
    return -torch.exp(-first.square() - second.square())


def starts(seed: int, count: int) -> Tensor:
    """Return starts that are uniform on [-1, 1]^2, ``(count, 2)``."""
    return 2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1


def make(parameter: Tensor, config: Mapping[str, Any], lr: float, num_data: float) -> torch.optim.Optimizer:
    """Create the optimiser of a method."""
    if config["method"] in ("gradient-descent", "adam"):
        rule = torch.optim.SGD if config["method"] == "gradient-descent" else torch.optim.Adam
        return rule([parameter], lr=lr)
    options: dict[str, Any] = {"lr": lr, "num_data": num_data, "initial_precision": config["initial_sd"] ** -2}
    if config["method"] == "vadagrad":
        return ba.VadaGrad([parameter], **options)
    options |= {"prior_precision": config["prior_precision"], "betas": (0.9, 0.99)}
    return ba.Vadam([parameter], **options)


def descend(first: Tensor, config: Mapping[str, Any], lr: float, num_data: float, every: int = 0) -> list[Tensor]:
    """Return the means after every ``every`` steps and at the end, from starts ``(n, 2)``.

    All rules are element-wise, so that one tensor has as many independent descents as it has rows. For the method
    ``"annealed"``, the temperature falls linearly from 1 to 0.
    """
    parameter = torch.nn.Parameter(first.clone())
    optimizer = make(parameter, config, lr, num_data)
    path = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective(parameter).sum()
        torch.autograd.backward(loss)
        return loss

    for step in range(config["steps"]):
        if config["method"] == "annealed":
            for group in optimizer.param_groups:
                group["temperature"] = 1.0 - step / config["steps"]
        if every and step % every == 0:
            path.append(parameter.detach().clone())
        optimizer.step(closure)  # type: ignore[arg-type]  # a loss that is a tensor
    return [*path, parameter.detach().clone()]


def scores(ends: Tensor, steps: int) -> dict[str, float]:
    """Return scores of ends ``(n, 2)``: shares in the flat minimum, in any minimum and outside, value, and curvature.

    ``settled`` is the share on the line after ``steps`` steps of gradient descent, which remove the remaining noise.
    The value is averaged over all ends, and the curvature is the median over ends in a minimum.
    """
    settled = descend(ends, {"method": "gradient-descent", "steps": steps}, 0.001, 1.0)[-1]
    values, deep = objective(ends), objective(ends) < DEEP
    hessian = torch.func.vmap(torch.func.hessian(objective))(ends)
    trace = hessian.diagonal(dim1=-2, dim2=-1).sum(-1)[deep]
    return {
        "value": values.mean().item(),
        "deep": deep.double().mean().item(),
        "line": _on_line(ends),
        "settled": _on_line(settled),
        "centre": (ends.norm(dim=1) < CENTRE).double().mean().item(),
        "outside": (ends.abs() > 1).any(1).double().mean().item(),
        "curvature": trace.median().item() if len(trace) else float("nan"),
    }


def _on_line(ends: Tensor) -> float:
    return ((objective(ends) < DEEP) & (ends[:, 0].abs() < LINE)).double().mean().item()


def _tried(config: Mapping[str, Any], lr: float, num_data: float) -> dict[str, float]:
    """Return the scores of one setting from the tuning starts."""
    ends = descend(_together(config, "tuning_sets"), config, lr, num_data)[-1]
    return {"lr": lr, "num_data": num_data, **scores(ends, config["steps"])}


def _together(config: Mapping[str, Any], name: str) -> Tensor:
    return torch.cat([starts(seed, config["starts"]) for seed in config[name]])


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Return the setting with the lowest mean value from the tuning starts, and its scores from the test starts."""
    config = unit.config
    tried: list[dict[str, float]] = []
    settings = list(product(config["lr"], config.get("num_data", [1.0])))
    for lr, num_data in settings:
        context.progress(len(tried), len(settings) + 1, f"lr {lr:g}")
        tried.append(context.memory.cache(_tried)(config, lr, num_data))
    best = min(tried, key=lambda one: one["value"])
    chosen = best["lr"], best["num_data"]
    ends = descend(_together(config, "test_sets"), config, *chosen)[-1]
    sets = torch.split(ends, config["starts"])
    paths = torch.stack(descend(torch.tensor(SHOWN, dtype=torch.float64), config, *chosen, every=config["path_every"]))
    return {
        "lr": best["lr"],
        "num_data": best["num_data"],
        "tried": tried,
        "sets": [scores(one, config["steps"]) for one in sets],
        "ends": sets[0].float(),
        "paths": paths.transpose(0, 1).float(),
    }


def report(results: Mapping[str, Any]) -> Report:
    """Return tables of the shares and the settings, and a figure of paths and ends."""
    shares: list[list[Any]] = []
    tried: list[list[Any]] = []
    for key, result in results.items():
        first, count, label = result["sets"][0], len(result["ends"]), METHODS[key][0]
        row: list[Any] = [label]
        for name in ("line", "settled", "centre"):
            row.append(Number(first[name], math.sqrt(first[name] * (1 - first[name]) / count), 3))
        paired = None
        if key != "gradient-descent" and "gradient-descent" in results:
            pairs = zip(result["sets"], results["gradient-descent"]["sets"], strict=True)
            paired = Number.of([one["settled"] - other["settled"] for one, other in pairs], decimals=3)
        columns = {"line": 3, "settled": 3, "centre": 3, "deep": 3, "value": 4, "curvature": 0, "outside": 3}
        means = [
            Number.of([one[name] for one in result["sets"] if one[name] is not None], decimals=decimals)
            for name, decimals in columns.items()
        ]
        shares.append([*row, *means[:2], paired, *means[2:]])
        for scale in sorted({one["num_data"] for one in result["tried"]}):
            cells = {
                one["lr"]: f"{one['value']:.3f} ({one['line']:.2f})"
                for one in result["tried"]
                if one["num_data"] == scale
            }
            tried.append([label, f"{scale:g}", *(cells.get(rate) for rate in PROTOCOL["lr"])])
    header = ["method", "first 200: on x = 0", "settled there", "within 0.2 of the origin", "all sets: on x = 0"]
    header += ["settled there", "less gradient descent", "within 0.2 of the origin", "any minimum", "mean F"]
    header += ["curvature", "outside of [-1, 1]²"]
    rates = [f"rate {rate:g}" for rate in PROTOCOL["lr"]]
    tables = {
        "Shares of starts, with standard errors: binomial for the first 200, else over ten sets": frame(header, shares),
        "From the tuning starts: mean F, and in brackets the share on x = 0": frame(
            ["method", "factor on F", *rates], tried
        ),
    }
    return Report(tables, {"paths": _figure(results)})


def _figure(results: Mapping[str, Any]) -> Figure:
    """Plot paths from four starts in the upper row, and the ends of the first 200 in the lower row."""
    shown = [key for key in ("gradient-descent", "adam", "annealed") if key in results]
    figure, axes = panels(2, len(shown), 3.2 * len(shown), 6.6, grid="", sharex=True, sharey=True)
    side = torch.linspace(-1.1, 1.1, 221, dtype=torch.float64)
    values = objective(torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)).numpy()
    for column, key in enumerate(shown):
        for axis in axes[:, column]:
            axis.contourf(side.numpy(), side.numpy(), values, levels=8, cmap="Blues_r")
            axis.axvline(0.0, color="black", lw=0.6, ls=":")
            axis.set_aspect("equal")
        for path in np.asarray(results[key]["paths"], float):
            axes[0, column].plot(*path.T, color=ORANGE, lw=0.9)
            axes[0, column].plot(*path[0], "o", color=ORANGE, ms=5, mfc="white")
            axes[0, column].plot(*path[-1], "o", color=ORANGE, ms=5)
        axes[1, column].plot(*np.asarray(results[key]["ends"], float).T, "o", color=ORANGE, ms=2.5, alpha=0.7)
        axes[0, column].set_title(METHODS[key][0], fontsize=10)
        axes[1, column].set_xlabel("x")
    axes[0, 0].set_ylabel("paths from four starts\ny")
    axes[1, 0].set_ylabel("ends of the first starts\ny")
    axes[0, 0].set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    return figure
