"""Where squares are added up, and buffers that are used again."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

CHUNK = 2 * 2**20
"""Bytes of a chunk of per-example gradients: large enough to keep the threads busy, small enough for the cache."""


def chunks(count: int, bytes_each: int, limit: int = CHUNK) -> list[slice]:
    """Cut ``count`` examples into runs of equal length (the last may be shorter) of at most ``limit`` bytes."""
    length = max(1, min(count, limit // max(1, bytes_each)))
    return [slice(start, min(start + length, count)) for start in range(0, count, length)]


class Scratch:
    """Buffers by name; fresh memory costs more than what is written into it."""

    def __init__(self) -> None:
        self._buffers: dict[Hashable, Tensor] = {}

    def get(self, name: Hashable, shape: Sequence[int], like: Tensor, *, zero: bool = False) -> Tensor:
        """A contiguous tensor with the dtype and device of ``like``, valid until the same name is asked for again.

        With ``zero`` it starts with zeros when first made; what is written there stays.
        """
        key, size = (name, like.dtype, like.device), math.prod(shape)
        found = self._buffers.get(key)
        if found is None or found.numel() < size:
            found = like.new_zeros(size) if zero else like.new_empty(size)
            self._buffers[key] = found
        return found[:size].view(tuple(shape))

    def ones(self, length: int, like: Tensor) -> Tensor:
        """That many ones, not to be changed."""
        key = ("ones", like.dtype, like.device)
        if key not in self._buffers or len(self._buffers[key]) < length:
            self._buffers[key] = like.new_ones(length)
        return self._buffers[key][:length]


class Total:
    """``alpha`` times the sum of one parameter's squared per-example gradients; the memory is kept when forgotten."""

    def __init__(self) -> None:
        self.empty = True
        self.alpha = 1.0
        self._value: Tensor | None = None

    def open(self, shape: Sequence[int], like: Tensor, alpha: float) -> tuple[Tensor, float]:
        """The tensor to add to, and by what it must be multiplied first: 0 if its contents mean nothing.

        Args:
            shape: Of the parameter.
            like: Gives dtype (float32 or wider) and device.
            alpha: What the sum is to be multiplied by, as far as known; later sums follow the first.
        """
        if self.empty:
            old = self._value
            if old is None or old.shape != torch.Size(shape) or old.dtype != like.dtype or old.device != like.device:
                self._value = like.new_empty(tuple(shape))
            self.alpha, self.empty = alpha, False
            assert self._value is not None
            return self._value, 0.0
        assert self._value is not None
        return self._value, 1.0

    def add(self, shape: Sequence[int], like: Tensor, alpha: float) -> Tensor:
        """The tensor to add to, its contents valid; see :meth:`open`."""
        value, beta = self.open(shape, like, alpha)
        return value.zero_() if beta == 0.0 else value

    def read(self, alpha: float) -> Tensor:
        """``alpha`` times the sum; rescales in place, so that reading again is free."""
        assert self._value is not None
        if alpha != self.alpha:
            self._value.mul_(alpha / self.alpha)
            self.alpha = alpha
        return self._value
