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
    """A text in three contiguous parts: training, validation and test.

    Attributes:
        alphabet: The characters that occur. The code of a character is its index in the alphabet.
        train: Codes of the first part, ``(n,)``.
        validation: Codes of the second part.
        test: Codes of the last part.
    """

    alphabet: tuple[str, ...]
    train: Tensor
    validation: Tensor
    test: Tensor

    @classmethod
    def divided(cls, codes: Tensor, alphabet: Sequence[str], held_out: float = 0.1) -> Text:
        """Divide a text as torch-rnn does: the last share ``held_out`` is the test part, and an equal share before it
        the validation part.
        """
        size = int(held_out * len(codes))
        train, validation, test = torch.split(codes, [len(codes) - 2 * size, size, size])
        return cls(tuple(alphabet), train, validation, test)

    @classmethod
    def load(cls) -> Text:
        """Load War and Peace, divided into 80%, 10% and 10%."""
        data = ba.data.load("text/war-and-peace")
        return cls.divided(torch.cat([data.x_train, data.y_train[-1:]]), data.target_names)


class Rows(ABC):
    """Characters and their successors as two matrices, of which every step takes a block.

    The rows of a matrix, one after another, are the text. Its end is left out if it does not fill a block.

    Attributes:
        x: Codes, ``(rows, columns)``.
        y: Codes of the successors, of the same shape.
        steps: Number of blocks.
    """

    x: Tensor
    y: Tensor
    steps: int

    @abstractmethod
    def block(self, step: int, order: Tensor | None = None) -> tuple[slice | Tensor, slice]:
        """Return the rows and columns of a step, counted from 0."""

    def order(self, seed: int) -> Tensor | None:
        """Return the order of the blocks in an epoch, or ``None`` if the order is fixed."""
        return None

    def _cut(self, codes: Tensor, size: int, columns: int | None, rows: int | None) -> None:
        self.steps = (len(codes) - 1) // size
        if self.steps < 1:
            raise ValueError(f"codes must be more than a block of {size}, got {len(codes)}")
        used = self.steps * size
        shape = (-1 if rows is None else rows, -1 if columns is None else columns)
        self.x, self.y = codes[:used].view(shape), codes[1 : used + 1].view(shape)


class Streams(Rows):
    """``batch_size`` streams side by side, each of which is read from beginning to end, for a network with a memory."""

    def __init__(self, codes: Tensor, batch_size: int, length: int) -> None:
        self.length = length
        self._cut(codes, batch_size * length, None, batch_size)

    def block(self, step: int, order: Tensor | None = None) -> tuple[slice | Tensor, slice]:
        """Return the next ``length`` characters of all streams."""
        return slice(None), slice(step * self.length, (step + 1) * self.length)


class Windows(Rows):
    """Windows of ``length`` characters in random order, for a network without a memory."""

    def __init__(self, codes: Tensor, batch_size: int, length: int) -> None:
        self.batch_size = batch_size
        self._cut(codes, batch_size * length, length, None)

    def order(self, seed: int) -> Tensor:
        """Return a permutation of the windows."""
        return torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))

    def block(self, step: int, order: Tensor | None = None) -> tuple[slice | Tensor, slice]:
        """Return the next ``batch_size`` windows in the given order, or in that of the text."""
        rows = slice(step * self.batch_size, (step + 1) * self.batch_size)
        return (rows if order is None else order[rows]), slice(None)
