"""The text: its alphabet, three contiguous parts, and the order in which characters are fed to a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import bayesadam as ba


@dataclass(frozen=True)
class Text:
    """A text in three contiguous parts, in this order.

    Attributes:
        alphabet: The characters that occur; a code is a place in it.
        train: Codes of the first part, ``(n,)``.
        validation: Codes of the second.
        test: Codes of the last.
    """

    alphabet: tuple[str, ...]
    train: Tensor
    validation: Tensor
    test: Tensor

    @classmethod
    def divided(cls, codes: Tensor, alphabet: Sequence[str], held_out: float = 0.1) -> Text:
        """The last ``held_out`` of the text is the test part, as much before it the validation part (torch-rnn's)."""
        size = int(held_out * len(codes))
        train, validation, test = torch.split(codes, [len(codes) - 2 * size, size, size])
        return cls(tuple(alphabet), train, validation, test)

    @classmethod
    def load(cls) -> Text:
        """War and Peace: 80%, 10% and 10%."""
        data = ba.data.load("text/war-and-peace")
        return cls.divided(torch.cat([data.x_train, data.y_train[-1:]]), data.target_names)


class Rows(ABC):
    """Characters and their successors as two matrices, of which every step takes a block.

    Read row by row, a matrix is the text. What does not fill a whole number of blocks is left out at the end.

    Attributes:
        x: Codes, ``(rows, columns)``.
        y: Their successors.
        steps: Number of blocks.
    """

    x: Tensor
    y: Tensor
    steps: int

    @abstractmethod
    def block(self, step: int, order: Tensor | None = None) -> tuple[slice | Tensor, slice]:
        """Rows and columns of a step, counted from 0."""

    def order(self, seed: int) -> Tensor | None:
        """The order of an epoch, where there is a choice."""
        return None

    def _cut(self, codes: Tensor, size: int, columns: int | None, rows: int | None) -> None:
        self.steps = (len(codes) - 1) // size
        if self.steps < 1:
            raise ValueError(f"codes must be more than a block of {size}, got {len(codes)}")
        used = self.steps * size
        shape = (-1 if rows is None else rows, -1 if columns is None else columns)
        self.x, self.y = codes[:used].view(shape), codes[1 : used + 1].view(shape)


class Streams(Rows):
    """``batch_size`` streams side by side, each read from its beginning to its end: for a network with a memory."""

    def __init__(self, codes: Tensor, batch_size: int, length: int) -> None:
        self.length = length
        self._cut(codes, batch_size * length, None, batch_size)

    def block(self, step: int, order: Tensor | None = None) -> tuple[slice | Tensor, slice]:
        """The next ``length`` characters of all streams."""
        return slice(None), slice(step * self.length, (step + 1) * self.length)


class Windows(Rows):
    """Windows of ``length`` characters in random order: for a network that sees nothing else."""

    def __init__(self, codes: Tensor, batch_size: int, length: int) -> None:
        self.batch_size = batch_size
        self._cut(codes, batch_size * length, length, None)

    def order(self, seed: int) -> Tensor:
        """A permutation of the windows."""
        return torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))

    def block(self, step: int, order: Tensor | None = None) -> tuple[slice | Tensor, slice]:
        """``batch_size`` windows, the next of the order or of the text."""
        rows = slice(step * self.batch_size, (step + 1) * self.batch_size)
        return (rows if order is None else order[rows]), slice(None)
