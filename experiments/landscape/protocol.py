"""The function, a descent from many starts at once, and its scores."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

import bayesadam as ba
from experiments.experiment import Progress

LINE, CENTRE, DEEP = 0.02, 0.2, -0.99
"""Bounds for the end of a descent: it is on the line if ``|x|`` is below the first, in the widest part of that valley
if the distance from the origin is below the second, and in any minimum if ``F`` is below the third.
"""
SHOWN = ((-0.7, 0.3), (0.6, -0.5), (0.5, 0.7), (-0.4, -0.8))
"""Four starts of the paths in the figure, away from the line."""


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
    match config["method"]:
        case "gradient-descent":
            return torch.optim.SGD([parameter], lr=lr)
        case "adam":
            return torch.optim.Adam([parameter], lr=lr)
        case "vadagrad":
            return ba.VadaGrad([parameter], lr=lr, num_data=num_data, initial_precision=config["initial_sd"] ** -2)
    return ba.Vadam(
        [parameter],
        lr=lr,
        num_data=num_data,
        prior_precision=config["prior_precision"],
        initial_precision=config["initial_sd"] ** -2,
        betas=(0.9, 0.99),
        recipe="paper",
    )


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


def search(config: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Return the setting with the lowest mean value from the tuning starts, and its scores from the test starts."""

    def together(seeds: list[int]) -> Tensor:
        return torch.cat([starts(seed, config["starts"]) for seed in seeds])

    settings = list(product(config["lr"], config.get("num_data", [1.0])))
    tuning, tried = together(config["tuning_sets"]), []
    for lr, num_data in settings:
        ends = descend(tuning, config, lr, num_data)[-1]
        tried.append({"lr": lr, "num_data": num_data, **scores(ends, config["steps"])})
        progress(len(tried), len(settings) + 1, f"lr {lr:g}")
    best = min(tried, key=lambda one: one["value"])
    chosen = best["lr"], best["num_data"]
    ends = descend(together(config["test_sets"]), config, *chosen)[-1]
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
