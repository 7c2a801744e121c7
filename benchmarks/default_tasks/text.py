"""Text: a transformer that predicts the next character of War and Peace, an LSTM that says where a window is from."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Generator, Tensor, nn

import bayesadam as ba
from default_tasks.task import Data, Task, divide
from default_tasks.transformer import Transformer

BLOCK = 4_096
"""Consecutive characters that go to the same part: training, validation or test."""
PARTS = 8
HELD_OUT = 1_000


@lru_cache(1)
def characters() -> tuple[Tensor, int]:
    """Codes of all characters, and how many different ones there are."""
    found = ba.data.load("text/war-and-peace")
    return found.x_train, len(found.target_names)


def windows(seed: int, length: int, *sizes: int) -> list[tuple[Tensor, Tensor]]:
    """Windows that do not overlap, ``(n, length)``, of training, validation and test blocks (70, 10 and 20%), and
    from which eighth of the text each is.
    """
    codes, _ = characters()
    count = len(codes) // BLOCK
    blocks = codes[: count * BLOCK].view(count, BLOCK)
    parts = []
    shares = divide(count, seed, int(0.7 * count), int(0.1 * count), -1)
    for number, (rows, size) in enumerate(zip(shares, sizes, strict=True)):
        per_block = BLOCK // length
        cut = blocks[rows, : per_block * length].reshape(-1, length)
        label = (rows * PARTS // count).repeat_interleave(per_block)
        chosen = divide(len(cut), seed + 1_000 * number, size)[0]
        parts.append((cut[chosen], label[chosen]))
    return parts


def shuffled(x: Tensor, seed: int) -> Tensor:
    """The characters of every window in random order."""
    order = torch.rand(x.shape, generator=Generator().manual_seed(seed)).argsort(1)
    return x.gather(1, order)


def next_characters(seed: int, size: int | None, *, length: int) -> Data:
    """Windows and, as targets, the character after each of theirs."""
    parts = windows(seed, length + 1, size or 6_000, 320, 320)
    train, validation, test = ((cut[:, :-1].contiguous(), cut[:, 1:].contiguous()) for cut, _ in parts)
    return Data(train, validation, test, shuffled(test[0], seed))


def origins(seed: int, size: int | None, *, length: int) -> Data:
    """Windows and the eighth of the text that each is from."""
    train, validation, test = windows(seed, length, size or 8_000, HELD_OUT, 2 * HELD_OUT)
    return Data(train, validation, test, shuffled(test[0][:HELD_OUT], seed))


class Reader(nn.Module):
    """An LSTM whose states, averaged over the window, are classified."""

    def __init__(self, characters: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 32)
        self.lstm = nn.LSTM(32, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        return self.head(states.mean(1))


TASKS = [
    Task(
        name="characters",
        data=partial(next_characters, length=64),
        model=lambda data: Transformer(characters()[1], width=96, depth=3, length=64),
        likelihood=ba.Categorical,
        batch_size=32,
        epochs=5,
        size=6_000,
        seeds=3,
        outside="shuffled characters",
        weight_decay=True,
        quick_size=1_500,
    ),
    Task(
        name="lstm",
        data=partial(origins, length=100),
        model=lambda data: Reader(characters()[1], PARTS),
        likelihood=ba.Categorical,
        batch_size=64,
        epochs=12,
        size=8_000,
        seeds=3,
        outside="shuffled characters",
        quick_size=2_000,
    ),
]
