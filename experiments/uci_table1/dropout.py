"""MC dropout as in Gal's code of 2018: dropout rate and noise precision are chosen from a grid on a fifth of the rows.

The grid and the validation part are those of his repository: the last fifth of every training split is held out, the
pair with the best pointwise log-likelihood is taken, and a new network is trained on the whole split. Networks with the
same rate are trained together by Adam, with their weights stacked along a new first axis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesadam as ba
from bayesadam import population
from experiments.data import load
from experiments.framework import Context, save
from experiments.uci import Part, splits
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


@dataclass(frozen=True)
class Candidate:
    """A dropout rate, and a noise precision in original units."""

    rate: float
    noise_precision: float


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
    parts: Sequence[Part],
    candidates: Sequence[Candidate],
    seeds: Sequence[int],
    config: Mapping[str, Any],
    folder: Path,
    progress: Callable[[float], None],
) -> list[nn.Module]:
    """Train one network per part and candidate. Networks with the same dropout rate are trained together.

    Args:
        parts: Training parts of equal sizes.
        candidates: One candidate per part.
        seeds: Seeds of the initial weights, one per part.
        config: hidden, length_scale, epochs, batch_size, lr, seed.
        folder: Folder for checkpoints. A killed run is resumed from there, with bitwise the same result.
        progress: Function that is called with the completed share of the work.
    """
    trained: dict[int, nn.Module] = {}
    for rate in RATES:
        rows = [i for i, own in enumerate(candidates) if own.rate == rate]
        if not rows:
            continue
        make = partial(network, parts[0].x.shape[1], config["hidden"], rate)
        models = population.initialize(make, seeds=[seeds[i] for i in rows])
        strength = config["length_scale"] ** 2 * (1.0 - rate) / (2.0 * len(parts[0].train[0]))
        decay = [strength / candidates[i].noise_precision for i in rows]
        already = len(trained)

        def tell(done: float, already: int = already, now: int = len(rows)) -> None:
            progress((already + done * now) / len(parts))

        train(models, [parts[i].train for i in rows], decay, config, folder / f"rate-{rate}.pt", tell)
        trained |= dict(zip(rows, models, strict=True))
    return [trained[i] for i in range(len(parts))]


def scores(
    models: Sequence[nn.Module], parts: Sequence[Part], candidates: Sequence[Candidate], samples: int, seed: int
) -> list[dict[str, float]]:
    """Return the test scores of every network."""
    found = []
    for model, part, own in zip(models, parts, candidates, strict=True):
        likelihood = ba.Gaussian(own.noise_precision * float(part.scaler.std) ** 2)
        q = ba.MCDropout(model)
        found.append(score(ba.predict(model, q, part.x, likelihood=likelihood, mc_samples=samples, seed=seed), part))
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
    """Choose a candidate for every split, train again on the whole training split, and return test scores."""
    parts = splits(f"uci/{config['dataset']}", config["splits"])
    validation = held_out(config["dataset"], config["splits"], config["validation_share"])
    grid = [Candidate(rate, noise) for rate in config["rates"] for noise in config["noise_precisions"]]
    tried = [(part, own) for part in validation for own in grid]
    some = [part for part, _ in tried]
    seeds = _seeds(config, len(grid), 1)
    folder = context.folder / "grid"
    models = fit(
        some, [own for _, own in tried], seeds, config, folder, lambda done: context.progress(done, 1.3, "grid")
    )
    samples, seed = config["validation_samples"], config["seed"]
    found = scores(models, some, [own for _, own in tried], samples, seed)
    best, values = [], []
    for split in range(len(parts)):
        own = [one["log_likelihood"] for one in found[split * len(grid) : (split + 1) * len(grid)]]
        values.append(max(own))
        best.append(grid[own.index(max(own))])
    seeds, folder = _seeds(config, 1, 0), context.folder / "test"
    models = fit(parts, best, seeds, config, folder, lambda done: context.progress(1 + 0.2 * done, 1.3, "test"))
    tested = scores(models, parts, best, config["evaluation_samples"], seed)
    return {
        "splits": [
            {"rate": own.rate, "noise_precision": own.noise_precision, "validation_log_likelihood": value, **one}
            for own, value, one in zip(best, values, tested, strict=True)
        ]
    }


def _seeds(config: Mapping[str, Any], each: int, offset: int) -> list[int]:
    """Return seeds, which give all candidates of a split the same initial weights and order."""
    return [1000 * split + offset for split in range(config["splits"]) for _ in range(each)]


def train(
    models: Sequence[nn.Module],
    data: Sequence[tuple[Tensor, Tensor]],
    decay: Sequence[float],
    config: Mapping[str, Any],
    checkpoint: Path,
    progress: Callable[[float], None],
) -> None:
    """Minimise the mean squared error plus ``decay`` times the sum of the squared weights, without the biases.

    Args:
        models: Networks of dropout, linear, ReLU, dropout and linear layers, all with the same rate. They receive the
            trained weights.
        data: Inputs ``(n, d)`` and targets ``(n, 1)`` of every network, of equal sizes.
        decay: Strength of the weight decay, one per network.
        config: epochs, batch_size, lr, and the seed of order and dropout. All networks have minibatches of the same
            rows; the last minibatch of an epoch is smaller.
        checkpoint: File for checkpoints, from which a stopped training is resumed. This function does not delete it.
        progress: Function that is called after every epoch with the completed share of the training.
    """
    rate = next(layer.p for layer in models[0].modules() if isinstance(layer, nn.Dropout))
    x, y = (torch.stack([pair[i] for pair in data]) for i in (0, 1))
    linear = [[layer for layer in model.modules() if isinstance(layer, nn.Linear)] for model in models]
    weights = [
        torch.stack([getattr(own[place], name).detach() for own in linear]).requires_grad_()
        for place in (0, 1)
        for name in ("weight", "bias")
    ]
    strength = torch.tensor(list(decay))[:, None, None]
    optimizer = torch.optim.Adam(weights, lr=config["lr"], fused=True)
    generator = torch.Generator().manual_seed(config["seed"])
    done = _load(checkpoint, weights, optimizer, generator)
    saved = time.monotonic()
    for epoch in range(done, config["epochs"]):
        for rows in torch.split(torch.randperm(x.shape[1], generator=generator), config["batch_size"]):
            optimizer.zero_grad()
            output = forward(weights, x[:, rows], rate, generator)
            loss = (output - y[:, rows]).square().mean(1).sum()
            for weight in weights[::2]:
                loss = loss + (strength * weight.square()).sum()
            torch.autograd.backward(loss)
            optimizer.step()
        progress((epoch + 1) / config["epochs"])
        if epoch + 1 == config["epochs"] or time.monotonic() > saved + SECONDS:
            _save(checkpoint, weights, optimizer, generator, epoch + 1)
            saved = time.monotonic()
    with torch.no_grad():
        for row, (first, last) in enumerate(linear):
            for parameter, weight in zip([*first.parameters(), *last.parameters()], weights, strict=True):
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


def _save(
    path: Path, weights: Sequence[Tensor], optimizer: torch.optim.Adam, generator: torch.Generator, epoch: int
) -> None:
    state = {"weights": list(weights), "adam": optimizer.state_dict(), "generator": generator.get_state()}
    save(path, {**state, "epoch": epoch})


def _load(path: Path, weights: Sequence[Tensor], optimizer: torch.optim.Adam, generator: torch.Generator) -> int:
    """Restore a checkpoint, and return the number of completed epochs."""
    if not path.is_file():
        return 0
    state = torch.load(path)
    with torch.no_grad():
        for weight, value in zip(weights, state["weights"], strict=True):
            weight.copy_(value)
    optimizer.load_state_dict(state["adam"])
    generator.set_state(state["generator"])
    return int(state["epoch"])
