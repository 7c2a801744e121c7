"""Five networks by ``train_ensemble`` beside one network in a loop, in one process on one thread.

    python benchmarks/ensemble.py       # prints the table, writes runs/benchmarks/ensemble.json

Each contender trains from new weights on minibatches of 32, which includes whatever ``train_ensemble`` does before its
first step. The loops are those that a user writes: a slice of shuffled rows, ``cross_entropy``, a step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bayesadam as ba
from networks import perceptron
from record import arguments, conditions, save
from turns import take_turns

BATCH, MEMBERS, ROUNDS = 32, 5, 9


def convolutional() -> nn.Sequential:
    """Two convolutions, for images of 14 x 14."""
    first = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(288, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "64-128-128-10": (partial(perceptron, 64, 128, 128, 10), (64,), 400),
    "convolutions, 16 and 32 filters": (convolutional, (1, 14, 14), 60),
}
"""Network, shape of an input, and steps of a training."""


def loop(
    make: Callable[[], nn.Module], x: Tensor, y: Tensor, *, adam: bool = False, channels_last: bool = False
) -> None:
    """Train one network."""
    net, steps = make(), len(x) // BATCH
    if channels_last:
        net, x = (
            net.to(memory_format=torch.channels_last),
            torch.empty_like(x, memory_format=torch.channels_last).copy_(x),
        )
    if adam:
        opt: Any = torch.optim.Adam(net.parameters())
    else:
        opt = ba.BayesAdam(net.named_parameters(), num_data=len(x), batch_size=BATCH, total_steps=steps)
        opt.train()
    for rows in torch.randperm(len(x)).split(BATCH):
        opt.zero_grad()
        cross_entropy(net(x[rows]), y[rows]).backward()
        opt.step()


def contenders(make: Callable[[], nn.Module], shape: tuple[int, ...], steps: int) -> dict[str, Callable[[], object]]:
    """Functions that train one network or five, for one epoch."""
    torch.manual_seed(0)
    x, y = torch.randn(steps * BATCH, *shape), torch.randint(10, (steps * BATCH,))
    options: dict[str, Any] = {"likelihood": ba.Categorical(), "epochs": 1, "batch_size": BATCH, "progress": False}

    def one_after_another() -> None:
        for _ in range(MEMBERS):
            loop(make, x, y)

    found: dict[str, Callable[[], object]] = {
        "one network, BayesAdam": partial(loop, make, x, y),
        "one network, Adam": partial(loop, make, x, y, adam=True),
        "five, one after another": one_after_another,
        "five, train_ensemble": partial(ba.train_ensemble, make, (x, y), members=MEMBERS, **options),
        "five of Adam, train_ensemble": partial(
            ba.train_ensemble, make, (x, y), members=MEMBERS, method="adam", **options
        ),
    }
    if len(shape) == 3:
        found["one network, channels last"] = partial(loop, make, x, y, channels_last=True)
        found["five, train_ensemble with vmap"] = partial(
            ba.train_ensemble, make, (x, y), members=MEMBERS, together=True, **options
        )
    return found


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {**conditions("torch", "bayesadam"), "members": MEMBERS, "cases": {}}
    for name, case in CASES.items():
        print(name)
        report["cases"][name] = take_turns(contenders(*case), ROUNDS, warm=False)
    save(options.output / "ensemble.json", report)


if __name__ == "__main__":
    main()
