"""Text: a transformer that predicts the next character of War and Peace, an LSTM that says where a window is from."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Generator, Tensor, nn

from default_tasks.task import Data, Part, Task, divide
from networks import Transformer
from public_data import load

BLOCK = 1_024
"""Consecutive characters that go to the same part: training, validation or test."""
PARTS = 8


@lru_cache(1)
def book() -> tuple[Tensor, tuple[str, ...]]:
    """Codes of all characters, and the alphabet."""
    found = load("text/war-and-peace")
    return found.x_train, found.target_names


def windows(codes: Tensor, seed: int, length: int, *sizes: int) -> list[Part]:
    """Windows that do not overlap, ``(n, length)``, of training, validation and test blocks (70, 10 and 20% of the
    text), and from which eighth of the text each is.
    """
    count = len(codes) // BLOCK
    blocks = codes[: count * BLOCK].view(count, BLOCK)
    shares = divide(count, seed, int(0.7 * count), int(0.1 * count), -1)
    parts = []
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


def next_characters(codes: Tensor, seed: int, length: int, *sizes: int) -> Data:
    """Windows and, as targets, the character after each of theirs."""
    parts = windows(codes, seed, length + 1, *sizes)
    train, validation, test = ((cut[:, :-1].contiguous(), cut[:, 1:].contiguous()) for cut, _ in parts)
    return Data(train, validation, test, shuffled(test[0], seed))


def characters(seed: int, size: int | None) -> Data:
    """Of the whole book, in windows of 64."""
    return next_characters(book()[0], seed, 64, size or 1_500, 160, 320)


def origins(seed: int, size: int | None, *, length: int) -> Data:
    """Windows and the eighth of the text that each is from."""
    train, validation, test = windows(book()[0], seed, length, size or 2_500, 500, 2_000)
    return Data(train, validation, test, shuffled(test[0], seed))


class Reader(nn.Module):
    """An LSTM; the largest value that each of its states took in the window is classified."""

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(book()[1]), 32)
        self.lstm = nn.LSTM(32, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Characters ``(N, T)`` to logits ``(N, classes)``."""
        states, _ = self.lstm(self.embedding(x))
        return self.head(states.amax(1))


def transformer(data: Data) -> nn.Module:
    """Two blocks."""
    return Transformer(len(book()[1]), width=64, depth=2, length=64)


TASKS = [
    Task("characters", characters, transformer, epochs=5, size=1_500, weight_decay=True),
    Task("lstm", partial(origins, length=64), lambda data: Reader(PARTS), epochs=8, size=2_500),
]
