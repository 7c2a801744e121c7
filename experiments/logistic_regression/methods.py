"""The methods of Fig. 2, run by the population engine: one member per training set or seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import bayesadam as ba
from bayesadam import population
from experiments.experiment import Progress
from experiments.logistic_regression.matlab import MatlabVadam
from experiments.logistic_regression.mf_exact import Array, Gaussian
from experiments.logistic_regression.problem import Problem

STEPS = 1000
"""Number of steps between two reports of the progress. The number of iterations is rounded up to a multiple of it."""

METHODS: dict[str, Any] = {"vadam": "vadam", "vadam-matlab": MatlabVadam, "vogn": "vogn", "von": "von"}
"""The engine's name or rule of each method."""


def fit(
    problems: Sequence[Problem],
    config: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    start: float = 0.0,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> list[Gaussian]:
    """Return the posteriors at the end of a method's training, in float64.

    Args:
        problems: Problems of equal size, one per member, which all have the prior of the first.
        config: Settings from :func:`.protocol.settings`, or :data:`.protocol.VON`, possibly with changes.
        seeds: Seeds of the noise and of the minibatches, one per member.
        start: Initial value of all means. It must be 0 if the prior differs between the weights.
        checkpoint: Folder for checkpoints. Methods whose steps are averaged do not use it.
        progress: Function that is called regularly with the progress.
    """
    first = problems[0]
    shared = {
        "likelihood": ba.Bernoulli(),
        "method": METHODS[config["method"]],
        "seed": list(seeds),
        "chunk": len(problems),
        "progress": False,
        **_prior(first),
    }
    models = [_model(first, start) for _ in problems]
    data = _tensors(problems)
    told = progress or (lambda *_: None)
    if config["method"] == "von":
        return _von(models, data, shared, config, told)
    steps = min(STEPS, config["iterations"])
    epochs = math.ceil(config["iterations"] / steps)
    decay = None if config["decay"] is None else ba.optim.polynomial_decay(config["decay"])
    nets = population.train(
        models,
        data,
        epochs=epochs,
        steps_per_epoch=steps,
        batch_size=config["batch_size"],
        replacement=True,
        lr=config["lr"],
        betas=(config["momentum"], 1.0 - config["rate"]),
        lr_decay=decay,
        beta_decay=decay,
        checkpoint=checkpoint,
        on_epoch=lambda epoch, members, nets: told(epoch + 1, epochs),
        **shared,
    )
    means, variances = _rows(nets.mean), _rows(nets.variance)
    return [Gaussian(m, np.sqrt(v)) for m, v in zip(means, variances, strict=True)]


def _von(
    models: list[nn.Module], data: Any, shared: dict[str, Any], config: Mapping[str, Any], told: Progress
) -> list[Gaussian]:
    """Run VON on full batches, and average the mean and the precision from the running Hessian over the last steps."""
    epochs = config["iterations"]
    begin = epochs - math.ceil(config["averaged"] * epochs)
    totals: dict[str, Any] = {"mean": 0.0, "precision": 0.0}

    def average(epoch: int, members: list[int], nets: population.Population) -> None:
        if epoch >= begin:
            totals["mean"] += _rows(nets.mean)
            totals["precision"] += 1.0 / _rows(nets.variance)
        told(epoch + 1, epochs)

    def decay(step: int) -> float:
        return 1.0 / (1.0 + step / float(config["half_life"]))

    population.train(
        models,
        data,
        epochs=epochs,
        batch_size=max(len(x) for x, _ in data),
        options={"hessian": "exact"},
        lr=config["lr"],
        betas=(0.0, 1.0 - config["rate"]),
        lr_decay=decay,
        beta_decay=decay,
        on_epoch=average,
        **shared,
    )
    count = epochs - begin
    return [Gaussian(m / count, (p / count) ** -0.5) for m, p in zip(*totals.values(), strict=True)]


def _model(problem: Problem, start: float) -> nn.Module:
    """Create a linear layer, whose bias replaces the column of ones."""
    model = nn.Linear(problem.x.shape[1] - problem.bias, 1, bias=problem.bias).double()
    for parameter in model.parameters():
        nn.init.constant_(parameter, start)
    return model


def _prior(problem: Problem) -> dict[str, Any]:
    """Return the prior, and an initial precision of 1 plus the largest one of the prior (``S = I`` in the MATLAB code).

    A prior that differs between the weights is passed as a posterior to continue from, so that its mean 0 is also the
    initial mean.
    """
    largest = float(problem.prior.max())
    if not problem.bias:
        return {"prior_precision": largest, "initial_precision": 1.0 + largest}
    variance = torch.from_numpy(1.0 / problem.prior)
    split = {"weight": variance[1:][None], "bias": variance[:1]}
    prior = ba.DiagonalGaussian({name: torch.zeros_like(part) for name, part in split.items()}, split)
    return {"prior": prior, "initial_precision": 1.0 + largest}


def _tensors(problems: Sequence[Problem]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return inputs without the column of ones, and targets ``(N, 1)``, once for problems that are the same object."""
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for problem in problems:
        pair = torch.from_numpy(problem.x[:, int(problem.bias) :].copy()), torch.from_numpy(problem.y).unsqueeze(1)
        found.setdefault(id(problem), pair)
    return [found[id(problem)] for problem in problems]


def _rows(tensors: Mapping[str, torch.Tensor]) -> Array:
    """Return the weights as rows, ``(P, D)``, with the bias first."""
    return torch.cat([tensors[name].flatten(1) for name in ("bias", "weight") if name in tensors], dim=1).numpy()
