"""Many small fits: a population beside the loop over single fits, in one process on one thread.

    python benchmarks/population.py       # prints the table, writes runs/benchmarks/population.json

Networks and minibatches are those of Khan et al. 2018, Table 1 (one hidden layer of 50 ReLU): "boston" stands for its
small data sets (M = 32, S = 10), "power" for the large ones (M = 128, S = 5); targets are random, which costs the same.
The loop trains each network by ``ba.Vadam`` with a closure. Each runs one epoch in its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import bayesadam as ba
from bayesadam import population
from record import arguments, conditions, save
from turns import take_turns

MEMBERS, ROUNDS = 100, 3
SHAPES = {"boston": (364, 13, 32, 10), "power": (6889, 4, 128, 5)}
"""Training points of a fold, inputs, batch size, samples."""


def contenders(points: int, inputs: int, batch: int, samples: int) -> dict[str, Callable[[], object]]:
    """Functions that train one member, and all of the population, for an epoch."""
    torch.manual_seed(0)

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 50), nn.ReLU(), nn.Linear(50, 1))

    models = population.initialize(make, seeds=range(MEMBERS))
    data = [(torch.randn(points, inputs), torch.randn(points, 1)) for _ in range(MEMBERS)]
    priors = [0.5 + 0.01 * member for member in range(MEMBERS)]
    likelihoods = [ba.Gaussian(1.0 + 0.1 * member) for member in range(MEMBERS)]
    options = {"lr": 0.01, "betas": (0.9, 0.99), "mc_samples": samples}
    all_options: dict[str, Any] = {"epochs": 1, "batch_size": batch, "prior_precision": priors, "progress": False}

    def together() -> None:
        population.train(models, data, likelihood=likelihoods, **all_options, **options)

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

    return {"ba.Vadam, one by one": vadam_alone, "population": together}


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {**conditions("torch", "bayesadam"), "members": MEMBERS, "cases": {}}
    for name, shape in SHAPES.items():
        print(name)
        report["cases"][name] = found = take_turns(contenders(*shape), ROUNDS)
        steps = -(-shape[0] // shape[2])
        for method, row in found.items():
            members = MEMBERS if method == "population" else 1
            row["milliseconds per member and step"] = round(row["milliseconds"] / members / steps, 4)
            print(f"  {method}: {row['milliseconds per member and step']} ms per member and step")
    save(options.output / "population.json", report)


if __name__ == "__main__":
    main()
