"""MC dropout as in Gal's code of 2018: dropout rate and noise precision are chosen from a grid on a fifth of the rows.

The grid and the validation part are those of his repository: the last fifth of every training split is held out, the
pair with the best pointwise log-likelihood is taken, and a new network is trained on the whole split. Networks with the
same rate are trained together by Adam, with their weights stacked along a new first axis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesadam as ba
from bayesadam import population
from experiments.data import load
from experiments.framework import Context, save
from experiments.uci import Pair, Part, splits
from experiments.uci_table1.methods import score

RATES = (0.005, 0.01, 0.05, 0.1)
NOISE_PRECISIONS: dict[str, tuple[float, float, float]] = {
    "boston": (0.1, 0.15, 0.2),
    "concrete": (0.025, 0.05, 0.075),
    "energy": (0.25, 0.5, 0.75),
    "kin8nm": (150.0, 200.0, 250.0),
    "naval": (30_000.0, 40_000.0, 50_000.0),
    "power": (0.05, 0.1, 0.15),
    "wine": (2.5, 3.0, 3.5),
    "yacht": (0.25, 0.5, 0.75),
}
"""Candidates for the noise precision by data set, in original units."""
SECONDS = 20.0
"""Minimum time in seconds between two checkpoints."""
_LEVELS = 2**16
"""Number of values of a random number that drops a unit. Dropout rates are rounded to multiples of its inverse."""


Task = tuple[Part, float, float]
"""A part with its dropout rate and its noise precision in original units."""


def network(inputs: int, hidden: int, rate: float) -> nn.Sequential:
    """Create a network with dropout on inputs and hidden units, and Keras's initial weights (Glorot's, biases 0)."""
    model = nn.Sequential(
        nn.Dropout(rate), nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(rate), nn.Linear(hidden, 1)
    )
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def fit(
    tasks: Sequence[Task], seeds: Sequence[int], config: Mapping[str, Any], context: Context, name: str
) -> list[nn.Module]:
    """Train one network per task. Networks with the same dropout rate are trained together.

    Args:
        tasks: Tasks with training parts of equal sizes.
        seeds: Seeds of the initial weights, one per task.
        config: hidden, length_scale, epochs, batch_size, lr, seed.
        context: Context of the unit.
        name: Name of the folder for checkpoints. A killed run is resumed from there, with bitwise the same result.
    """
    trained: dict[int, nn.Module] = {}
    for rate in RATES:
        rows = [i for i, task in enumerate(tasks) if task[1] == rate]
        if not rows:
            continue
        parts, share = [tasks[i][0] for i in rows], len(rows) / config["epochs"]
        make = partial(network, parts[0].x.shape[1], config["hidden"], rate)
        models = population.initialize(make, seeds=[seeds[i] for i in rows])
        strength = config["length_scale"] ** 2 * (1.0 - rate) / (2.0 * len(parts[0].train[0]))
        decay = torch.tensor([strength / tasks[i][2] for i in rows])[:, None, None]

        def tell(epoch: int, already: int = len(trained), share: float = share) -> None:
            context.progress(already + epoch * share, len(tasks), name)

        train(models, [part.train for part in parts], decay, config, context.folder / name / f"rate-{rate}.pt", tell)
        trained |= dict(zip(rows, models, strict=True))
    return [trained[i] for i in range(len(tasks))]


def scores(models: Sequence[nn.Module], tasks: Sequence[Task], samples: int, seed: int) -> list[dict[str, float]]:
    """Return the test scores of every network."""
    found = []
    for model, (part, _, noise) in zip(models, tasks, strict=True):
        options: dict[str, Any] = {
            "likelihood": ba.Gaussian(noise * float(part.scaler.std) ** 2),
            "mc_samples": samples,
            "seed": seed,
        }
        found.append(score(ba.predict(model, ba.MCDropout(model), part.x, **options), part))
    return found


def held_out(name: str, count: int, share: float) -> list[Part]:
    """Divide every split's training part; the last rows, in the random order of the files, are for validation."""
    found = []
    for split in range(count):
        data = load(f"uci/{name}", split=split)
        x, y = data.x_train, data.y_train
        size = int((1.0 - share) * len(x))
        found.append(Part.of((x[:size], y[:size]), (x[size:], y[size:])))
    return found


def run(config: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Choose a candidate for every split, train again on the whole training split, and return test scores.

    All candidates of a split have the same seed, and so the same initial weights and order.
    """
    validation = held_out(config["dataset"], config["splits"], config["validation_share"])
    grid = [(rate, noise) for rate in config["rates"] for noise in config["noise_precisions"]]
    tasks = [(part, *candidate) for part in validation for candidate in grid]
    models = fit(tasks, [1000 * (i // len(grid)) + 1 for i in range(len(tasks))], config, context, "grid")
    found = [own["log_likelihood"] for own in scores(models, tasks, config["validation_samples"], config["seed"])]
    values = [found[i : i + len(grid)] for i in range(0, len(found), len(grid))]
    parts = splits(f"uci/{config['dataset']}", config["splits"])
    best = [(part, *grid[own.index(max(own))]) for part, own in zip(parts, values, strict=True)]
    models = fit(best, [1000 * split for split in range(len(best))], config, context, "test")
    tested = scores(models, best, config["evaluation_samples"], config["seed"])
    return {
        "splits": [
            {"rate": rate, "noise_precision": noise, "validation_log_likelihood": max(own), **one}
            for (_, rate, noise), own, one in zip(best, values, tested, strict=True)
        ]
    }


def train(
    models: Sequence[nn.Module],
    data: Sequence[Pair],
    decay: Tensor,
    config: Mapping[str, Any],
    path: Path,
    tell: Callable[[int], None],
) -> None:
    """Minimise the mean squared error plus ``decay`` times the sum of the squared weights, without the biases.

    Args:
        models: Networks of dropout, linear, ReLU, dropout and linear layers, all with the same rate. They receive the
            trained weights.
        data: Inputs ``(n, d)`` and targets ``(n, 1)`` of every network, of equal sizes.
        decay: Strength of the weight decay of every network, ``(P, 1, 1)``.
        config: epochs, batch_size, lr, and the seed of order and dropout. All networks have minibatches of the same
            rows; the last minibatch of an epoch is smaller.
        path: File for checkpoints, from which a stopped training is resumed.
        tell: Function that is called with the number of completed epochs.
    """
    rate = next(layer.p for layer in models[0].modules() if isinstance(layer, nn.Dropout))
    x, y = (torch.stack([pair[i] for pair in data], dim=1) for i in (0, 1))  # a row of all networks is contiguous
    linear = [[layer for layer in model.children() if isinstance(layer, nn.Linear)] for model in models]
    parameters = [[p for layer in own for p in layer.parameters()] for own in linear]
    weights = [torch.stack([p.detach() for p in own]).requires_grad_() for own in zip(*parameters, strict=True)]
    optimizer = torch.optim.Adam(weights, lr=config["lr"], fused=True)
    generator, done, saved = torch.Generator().manual_seed(config["seed"]), 0, time.monotonic()
    if path.is_file():
        state = torch.load(path)
        weights, done = [weight.requires_grad_() for weight in state["weights"]], state["epoch"]
        optimizer = torch.optim.Adam(weights, lr=config["lr"], fused=True)
        optimizer.load_state_dict(state["adam"])
        generator.set_state(state["generator"])
    for epoch in range(done, config["epochs"]):
        for rows in torch.split(torch.randperm(len(x), generator=generator), config["batch_size"]):
            optimizer.zero_grad()
            output = forward(weights, x[rows].transpose(0, 1), rate, generator)
            loss = (output - y[rows].transpose(0, 1)).square().mean(1).sum()
            for weight in weights[::2]:
                loss = loss + (decay * weight.square()).sum()
            torch.autograd.backward(loss)
            optimizer.step()
        tell(epoch + 1)
        if epoch + 1 == config["epochs"] or time.monotonic() > saved + SECONDS:
            state = {"weights": weights, "adam": optimizer.state_dict(), "generator": generator.get_state()}
            save(path, {**state, "epoch": epoch + 1})
            saved = time.monotonic()
    with torch.no_grad():
        for row, own in enumerate(parameters):
            for parameter, weight in zip(own, weights, strict=True):
                parameter.copy_(weight[row])


def forward(weights: Sequence[Tensor], x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Return outputs ``(P, M, 1)`` of all networks. The dropped units of a data point are its own."""
    first, first_bias, last, last_bias = weights
    hidden = torch.baddbmm(first_bias.unsqueeze(1), x * mask(x.shape, rate, generator), first.transpose(1, 2)).relu()
    hidden = hidden * mask(hidden.shape, rate, generator)
    return torch.baddbmm(last_bias.unsqueeze(1), hidden, last.transpose(1, 2))


def mask(shape: torch.Size, rate: float, generator: torch.Generator) -> Tensor:
    """Return a mask, whose elements are 0 with probability ``rate`` and otherwise ``1 / (1 - rate)``.

    It uses sixteen random bits per element, which is a few times as fast as ``bernoulli_``, whose time would dominate
    the training.
    """
    words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    dropped = round(rate * _LEVELS)
    kept = words.view(torch.int16)[: shape.numel()].view(shape) >= dropped - _LEVELS // 2
    return kept.float().mul_(_LEVELS / (_LEVELS - dropped))
