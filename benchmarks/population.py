"""Many small fits: a population beside the loop over single fits, in one process on one thread.

    python benchmarks/population.py       # prints the table, writes runs/benchmarks/population.json

Networks and minibatches are those of Khan et al. 2018, Table 1 (one hidden layer of 50 ReLU): "boston" stands for its
small data sets (M = 32, S = 10), "power" for the large ones (M = 128, S = 5); targets are random, which costs the same.
The loop trains each network by ``ba.Vadam`` with a closure, and by ``torch.optim.Adam`` (no samples, one gradient) for
comparison. Fits per second are of whole fits of 40 epochs, from the time of the epochs that were run. Medians of rounds
in which all take turns. "kept memory" is the same with the C library told not to give freed memory back to the system.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import bayesadam as ba
from bayesadam import population
from record import arguments, conditions, save

MEMBERS, ROUNDS, EPOCHS = 100, 3, 40
SHAPES = {"boston": (364, 13, 32, 10), "power": (6889, 4, 128, 5)}
"""Training points of a fold, inputs, batch size, samples."""


def contenders(points: int, inputs: int, batch: int, samples: int) -> dict[str, tuple[Callable[[], object], int]]:
    """Functions and how many epochs of one member each runs."""
    torch.manual_seed(0)

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 50), nn.ReLU(), nn.Linear(50, 1))

    models = population.initialize(make, seeds=range(MEMBERS))
    data = [(torch.randn(points, inputs), torch.randn(points, 1)) for _ in range(MEMBERS)]
    priors = [0.5 + 0.01 * member for member in range(MEMBERS)]
    likelihoods = [ba.Gaussian(1.0 + 0.1 * member) for member in range(MEMBERS)]
    options = {"lr": 0.01, "betas": (0.9, 0.99), "mc_samples": samples}

    def together() -> None:
        population.train(
            models,
            data,
            likelihood=likelihoods,
            epochs=1,
            batch_size=batch,
            prior_precision=priors,
            progress=False,
            **options,
        )

    def vadam_alone() -> None:
        model, (x, y) = make(), data[0]
        optimizer = ba.Vadam(model.named_parameters(), num_data=points, prior_precision=priors[0], **options)
        for rows in torch.from_numpy(population.order(points, seed=0, epoch=0)).split(batch):
            here, there = x[rows], y[rows]

            def closure(here: torch.Tensor = here, there: torch.Tensor = there) -> torch.Tensor:
                optimizer.zero_grad()
                loss = likelihoods[0].nll(model(here), there)
                loss.backward()
                return loss

            optimizer.step(closure)

    def adam_alone() -> None:
        model, (x, y) = make(), data[0]
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.99))
        for rows in torch.from_numpy(population.order(points, seed=0, epoch=0)).split(batch):
            optimizer.zero_grad()
            likelihoods[0].nll(model(x[rows]), y[rows]).backward()
            optimizer.step()

    found: dict[str, tuple[Callable[[], object], int]] = {
        "torch.optim.Adam, one by one": (adam_alone, 1),
        "ba.Vadam, one by one": (vadam_alone, 1),
        f"population of {MEMBERS}": (together, MEMBERS),
    }
    return found


def keep_memory() -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(-1, 2**31 - 1) and mallopt(-3, 2**25))


def measure(name: str, kept: str) -> list[dict[str, object]]:
    points, inputs, batch, samples = SHAPES[name]
    functions = contenders(points, inputs, batch, samples)
    seconds: dict[str, list[float]] = {method: [] for method in functions}
    for function, _ in functions.values():
        function()
    for _ in range(ROUNDS):
        for method, (function, members) in functions.items():
            start = time.perf_counter()
            function()
            seconds[method].append((time.perf_counter() - start) / members)
    steps = -(-points // batch)
    rows: list[dict[str, object]] = []
    alone = statistics.median(seconds["ba.Vadam, one by one"])
    for method, times in seconds.items():
        one = statistics.median(times)
        rows.append(
            {
                "shape": name,
                "method": method + kept,
                "ms_per_step": 1e3 * one / steps,
                "fits_per_second": 1 / (EPOCHS * one),
                "times_faster_than_vadam_alone": alone / one,
            }
        )
        print(
            f"{name:8}{method + kept:48}{1e3 * one / steps:8.3f} ms per member and step"
            f"{1 / (EPOCHS * one):9.3f} fits/s{alone / one:8.1f}x",
            flush=True,
        )
    return rows


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    started = conditions("torch", "bayesadam")
    rows = [row for name in SHAPES for row in measure(name, "")]
    if keep_memory():
        rows += [row for name in SHAPES for row in measure(name, ", kept memory")]
    save(options.output / "population.json", {**started, "rows": rows})


if __name__ == "__main__":
    main()
