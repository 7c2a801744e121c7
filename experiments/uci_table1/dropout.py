"""MC dropout as in Gal's code of 2018: dropout rate and noise precision are chosen from a grid on a fifth of the rows.

The grid and the validation part are those of his repository: the last fifth of every training split is held out, the
pair with the best pointwise log-likelihood is taken, and a new network is trained on the whole split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

import bayesadam as ba
from bayesadam import population
from experiments.experiment import Context
from experiments.uci_table1.dropout_training import train
from experiments.uci_table1.protocol import Part, score, splits

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
        data = ba.data.load(f"uci/{name}", split=split)
        x, y = data.x_train, data.y_train
        size = int((1.0 - share) * len(x))
        found.append(Part.of((x[:size], y[:size]), (x[size:], y[size:])))
    return found


def run(config: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Choose a candidate for every split, train again on the whole training split, and return test scores."""
    parts = splits(config["dataset"], config["splits"])
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
