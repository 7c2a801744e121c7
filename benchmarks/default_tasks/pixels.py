"""Pixels: a small U-Net says what piece of clothing, if any, every pixel of a noisy picture belongs to."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from default_tasks.images import idx
from default_tasks.task import Data, Part, Task, divide

SIDE, ITEM = 28, 14
NOTHING = 10
"""Class of the background; 0 to 9 are those of Fashion-MNIST."""
NOISE, VISIBLE = 0.3, 0.2
"""Standard deviation of the noise, and the brightness from which a pixel belongs to a piece."""


def scenes(clothes: Tensor, labels: Tensor, count: int, generator: Generator) -> Part:
    """Noisy pictures ``(n, 1, 28, 28)`` of two pieces at random places, the second before the first, and the class of
    every pixel ``(n, 28, 28)``.
    """
    pictures = torch.zeros(count, SIDE, SIDE)
    classes = torch.full((count, SIDE, SIDE), NOTHING)
    for _ in range(2):
        chosen = torch.randint(len(clothes), (count,), generator=generator)
        corners = torch.randint(SIDE - ITEM + 1, (count, 2), generator=generator)
        for number, (row, (down, right)) in enumerate(zip(chosen.tolist(), corners.tolist(), strict=True)):
            here = (number, slice(down, down + ITEM), slice(right, right + ITEM))
            seen = clothes[row, 0] > VISIBLE
            pictures[here] = torch.where(seen, clothes[row, 0], pictures[here])
            classes[here] = torch.where(seen, labels[row], classes[here])
    pictures += NOISE * torch.randn(pictures.shape, generator=generator)
    return pictures.unsqueeze(1), classes


@lru_cache(2)
def segmentation(seed: int, size: int | None) -> Data:
    """Training pictures of 5,000 pieces, validation and test pictures of others."""
    x, y, x_test, y_test = idx("fashion-mnist", ITEM)
    train, validation = divide(len(x), seed, 5_000, 2_000)
    generator = Generator().manual_seed(seed)
    return Data(
        scenes(x[train], y[train], size or 400, generator),
        scenes(x[validation], y[validation], 60, generator),
        scenes(x_test, y_test, 300, generator),
    )


def _convolutions(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(4, out), nn.ReLU()),
        *(nn.Conv2d(out, out, 3, padding=1), nn.GroupNorm(4, out), nn.ReLU()),
    )


class UNet(nn.Module):
    """Two levels down and up again, with GroupNorm: 48,000 weights."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.fine, self.middle, self.coarse = _convolutions(1, 12), _convolutions(12, 24), _convolutions(24, 48)
        self.up_middle, self.up_fine = _convolutions(24 + 48, 24), _convolutions(12 + 24, 12)
        self.head = nn.Conv2d(12, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures ``(N, 1, H, W)`` to logits ``(N, H, W, C)``."""
        fine = self.fine(x)
        middle = self.middle(functional.max_pool2d(fine, 2))
        coarse = self.coarse(functional.max_pool2d(middle, 2))
        middle = self.up_middle(torch.cat([middle, _doubled(coarse)], 1))
        return self.head(self.up_fine(torch.cat([fine, _doubled(middle)], 1))).permute(0, 2, 3, 1)


def _doubled(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2.0)


TASKS = [Task("pixels", segmentation, lambda data: UNet(NOTHING + 1), epochs=6, size=400, batch_size=16)]
