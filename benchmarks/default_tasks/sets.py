"""Sets: which digit is drawn by 48 points in random order, told by a network that sums over them."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from default_tasks.images import idx
from default_tasks.task import Data, Task, divide

POINTS = 48
SIDE = 28


def drawn(pictures: Tensor, generator: Generator) -> Tensor:
    """Points ``(n, 48, 2)`` in [-1, 1], each in a pixel that is chosen by its brightness."""
    pixels = torch.multinomial(pictures.flatten(1) + 1e-6, POINTS, replacement=True, generator=generator)
    places = torch.stack([pixels // SIDE, pixels % SIDE], -1).float()
    moved = places + torch.rand(places.shape, generator=generator)
    return 2.0 * moved / SIDE - 1.0


def clouds(seed: int, size: int | None) -> Data:
    """Of MNIST: training and validation from its training part, test from its test part; clothes are foreign."""
    x, y, x_test, y_test = idx("mnist", SIDE)
    clothes = idx("fashion-mnist", SIDE)[2]
    train, validation = divide(len(x), seed, size or 3_000, 1_000)
    test, outside = divide(len(x_test), seed, 2_000)[0], divide(len(clothes), seed, 1_000)[0]
    generator = Generator().manual_seed(seed)
    return Data(
        (drawn(x[train], generator), y[train]),
        (drawn(x[validation], generator), y[validation]),
        (drawn(x_test[test], generator), y_test[test]),
        drawn(clothes[outside], generator),
    )


class DeepSet(nn.Module):
    """The same perceptron for every point, mean and maximum over the points, and a perceptron (Zaheer et al. 2017)."""

    def __init__(self, inputs: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.point = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.whole = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Sets ``(N, points, inputs)`` to logits ``(N, classes)``."""
        points = self.point(x)
        return self.whole(torch.cat([points.mean(1), points.amax(1)], -1))


TASKS = [Task("sets", clouds, lambda data: DeepSet(2, 10), epochs=15, size=3_000, batch_size=64)]
