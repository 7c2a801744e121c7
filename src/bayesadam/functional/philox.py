"""Philox4x32 (Salmon, Moraes, Dror and Shaw, SC 2011) and the Box-Muller transform by PyTorch's operations.

A counter's words and a key's are 32-bit numbers in int64 tensors, or Python integers where they are the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Word: TypeAlias = int | Tensor

ROUNDS = 7
"""Smallest number of rounds that passes all tests of BigCrush."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def normals_of(
    block: Tensor, key: Sequence[Word], pool: list[Tensor], floats: Sequence[Tensor]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the number of an output and two factors of its normals for every counter, flat, four times; they overwrite
    the previous ones.

    Args:
        block: First words of the counters; overwritten.
        key: Words of the key: the seed's halves, step, sample, index, stream.
        pool: Eight buffers like ``block``.
        floats: Three flat float32 buffers of the same number of elements.
    """
    words = philox(block, key, pool)
    radius, angle, trig = floats
    for pair in range(2):
        radius.copy_(words[2 * pair].view(-1)).mul_(2.0**-32).add_(2.0**-33).log_().mul_(-2.0).sqrt_()
        angle.copy_(words[2 * pair + 1].view(-1)).mul_(2.0 * math.pi * 2.0**-32)
        for second, function in enumerate((torch.cos, torch.sin)):
            yield 2 * pair + second, function(angle, out=trig), radius


def philox(block: Tensor, key: Sequence[Word], pool: list[Tensor]) -> list[Tensor]:
    """Four 32-bit words (in int64) for every counter in ``block``, which is overwritten; buffers are taken from
    ``pool``.
    """
    low, high, step, sample, index, stream = key
    number = sample | (stream << 28) if isinstance(sample, int) else sample.bitwise_or(stream << 28)

    def word(value: Word) -> Word:
        return value if isinstance(value, int) else pool.pop().copy_(value)

    return philox_rounds([block, word(index), word(step), word(number)], [low, high], pool, ROUNDS)


def philox_rounds(counter: list[Word], key: list[Word], pool: list[Tensor], rounds: int) -> list[Tensor]:
    """Apply the rounds of Philox4x32. Words that are equal everywhere stay Python integers as long as possible.

    Tensors are int64 and hold 32-bit words; those of ``counter`` are overwritten, and the others are taken from
    ``pool``.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        first, second = _multiply(c0, _MULTIPLIERS[0], pool), _multiply(c2, _MULTIPLIERS[1], pool)
        c0, c1, c2, c3 = _mix(second, c1, k0, c0, pool), second, _mix(first, c3, k1, c2, pool), first
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    c1, c3 = (w.bitwise_and_(_MASK) if isinstance(w, Tensor) else w & _MASK for w in (c1, c3))  # the others are masked
    return [w if isinstance(w, Tensor) else pool.pop().fill_(w) for w in (c0, c1, c2, c3)]


def _multiply(word: Word, multiplier: int, pool: list[Tensor]) -> Word:
    """The 64-bit product; it overflows as a signed tensor, but its bits are right."""
    if isinstance(word, int):
        return word * multiplier
    return torch.mul(word, multiplier, out=pool.pop())


def _mix(product: Word, word: Word, key: Word, dead: Word, pool: list[Tensor]) -> Word:
    """``high(product) ^ low(word) ^ key``; ``word`` and ``dead`` are overwritten."""
    if isinstance(product, int):
        if isinstance(dead, Tensor):
            pool.append(dead)
        if isinstance(word, int):
            return ((product >> 32) ^ word ^ key) & _MASK
        return word.bitwise_xor_((product >> 32) ^ key).bitwise_and_(_MASK)
    mixed = dead if isinstance(dead, Tensor) else pool.pop()
    torch.bitwise_right_shift(product, 32, out=mixed)
    if isinstance(word, int):
        return mixed.bitwise_xor_((word ^ key) & _MASK).bitwise_and_(_MASK)  # a number of at most 63 bits
    pool.append(word)
    return mixed.bitwise_xor_(word).bitwise_xor_(key).bitwise_and_(_MASK)
