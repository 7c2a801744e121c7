"""Philox4x32 (Salmon, Moraes, Dror and Shaw, SC 2011) and the Box-Muller transform by PyTorch's operations.

Words of 32 bits are kept in int64. The two words that are multiplied in a round are the rows of one tensor, and the two
others those of another, since every operation on a GPU is a launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["constants", "normals", "philox"]

Words: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Words 0 and 2 of all counters, words 1 and 3, and memory for the products, each ``(2, ..., n)``."""
ROUNDS = 7
"""Smallest number of rounds that passes all tests of BigCrush."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def constants(low: Sequence[int], high: Sequence[int], rounds: int = ROUNDS) -> NDArray[np.int64]:
    """Multipliers and keys of the rounds, ``(rounds, 2, 2, P, 1)``, for the halves of ``P`` seeds.

    The rows of the words change places in every round, and so do those of the constants.
    """
    table = np.empty((rounds, 2, 2, len(low), 1), dtype=np.int64)
    for number in range(rounds):
        for row in range(2):
            word = row ^ (number & 1)
            table[number, 0, row] = _MULTIPLIERS[word]
            key = (high, low)[word]  # of the product's other word
            step = _KEY_STEPS[1 - word]
            table[number, 1, row, :, 0] = [(half + number * step) & _MASK for half in key]
    return table


def philox(words: Words, rounds: Tensor) -> Words:
    """Apply the rounds of Philox4x32 and return the words; only the lowest 32 bits of the second ones count.

    Args:
        words: The counters; overwritten.
        rounds: The result of :func:`constants` as a tensor, whose axes broadcast with the words.
    """
    first, second, product = words
    for multiplier, key in rounds:
        torch.mul(first, multiplier, out=product)  # it overflows as a signed number, but its bits are right
        torch.bitwise_right_shift(product, 32, out=first)
        for row in range(2):
            first[row].bitwise_xor_(second[1 - row])
        first.bitwise_xor_(key).bitwise_and_(_MASK)
        second, product = product, second
    return first, second, product


def normals(words: Words, rounds: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the number of an output and two factors of its normals for every counter, four times; they are in the
    words' memory.

    Args:
        words: The counters, contiguous; overwritten.
        rounds: As for :func:`philox`.
    """
    first, second, spare = philox(words, rounds)
    radius, angle = spare.view(torch.float32).view(2, *first.shape)
    radius.copy_(first).mul_(2.0**-32).add_(2.0**-33).log_().mul_(-2.0).sqrt_()
    # Shifted, words are between -2^63 and 2^63, and angles between -pi and pi, where floats are closest to each other.
    angle.copy_(second.bitwise_left_shift_(32)).mul_(2.0 * math.pi * 2.0**-64)
    wave = second.view(torch.float32).view(2, *first.shape)[0]
    for number, function in enumerate((torch.cos, torch.sin)):
        function(angle, out=wave)
        for row in range(2):
            pair = row ^ (len(rounds) & 1)
            yield 2 * pair + number, wave[row], radius[row]
