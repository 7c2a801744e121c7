"""Deep networks, for which large steps at the start are dangerous: a decoder of four blocks, a ResNet-18, an encoder
that recalls which value goes with a key.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, Tensor, nn

from default_tasks.images import pictures
from default_tasks.made_up import task
from default_tasks.task import Data, Part, Task
from default_tasks.text import book, next_characters
from networks import Transformer, resnet

PAIRS, KEYS, VALUES = 6, 12, 4


def windows(seed: int, size: int | None) -> Data:
    """Windows of 64 characters of the whole book."""
    return next_characters(book()[0], seed, 64, size or 1_500, 160, 320)


def decoder(data: Data) -> nn.Module:
    """Four blocks of a width of 128: 800,000 weights."""
    return Transformer(len(book()[1]), width=128, depth=4, length=64)


def recall(count: int, generator: Generator) -> Part:
    """A key, and six pairs of different keys and values of which one is the key's: its value is the class."""
    keys = torch.rand(count, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = torch.randint(VALUES, (count, PAIRS), generator=generator)
    asked = torch.randint(PAIRS, (count, 1), generator=generator)
    pairs = torch.stack([keys, KEYS + values], 2).flatten(1)
    return torch.cat([keys.gather(1, asked), pairs], 1), values.gather(1, asked).squeeze(1)


class Encoder(nn.Module):
    """PyTorch's transformer encoder, two layers; the first token's state is classified."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(KEYS + VALUES, width), nn.Embedding(1 + 2 * PAIRS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VALUES)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``(N, 13)`` to logits ``(N, 4)``."""
        return self.head(self.layers(self.tokens(x) + self.places.weight)[:, 0])


def residual(data: Data) -> nn.Module:
    """Eight blocks of two convolutions with group norm: 180,000 weights."""
    return resnet(8, channels=1, norm=partial(nn.GroupNorm, 4))


_FASHION = partial(pictures, name="fashion-mnist", other="mnist", side=28)
TASKS = [
    Task("decoder", windows, decoder, epochs=2, size=1_600, batch_size=16, weight_decay=True),
    Task("resnet", _FASHION, residual, epochs=2, size=2_500),
    task("recall", recall, lambda data: Encoder(), 20, 3_000, weight_decay=True),
]
