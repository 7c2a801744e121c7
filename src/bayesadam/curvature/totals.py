"""Sums of squares, and reusable buffers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

CHUNK = 2 * 2**20
"""Size in bytes of a chunk of per-example gradients on a CPU: large enough to keep the threads busy, small enough for
the cache.
"""


def chunks(count: int, bytes_each: int, limit: int) -> list[slice]:
    """Divide ``count`` examples into runs of equal length (the last may be shorter) of at most ``limit`` bytes."""
    length = max(1, min(count, limit // max(1, bytes_each)))
    return [slice(start, min(start + length, count)) for start in range(0, count, length)]


class Scratch:
    """Reusable buffers by name, since allocating memory costs more than filling it."""

    def __init__(self) -> None:
        self._buffers: dict[Hashable, Tensor] = {}

    def get(self, name: Hashable, shape: Sequence[int], like: Tensor, *, zero: bool = False) -> Tensor:
        """Return a contiguous tensor with the dtype and device of ``like``, valid until the next call with the same
        name.

        With ``zero`` it is filled with zeros when it is first created; later contents are kept.
        """
        key, size = (name, like.dtype, like.device), math.prod(shape)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = like.new_zeros(size) if zero else like.new_empty(size)
            self._buffers[key] = buffer
        return buffer[:size].view(tuple(shape))

    def ones(self, length: int, like: Tensor) -> Tensor:
        """Return a vector of ones, which must not be changed."""
        key = ("ones", like.dtype, like.device)
        if key not in self._buffers or len(self._buffers[key]) < length:
            self._buffers[key] = like.new_ones(length)
        return self._buffers[key][:length]


class Total:
    """``alpha`` times the sum of one parameter's squared per-example gradients; its memory is kept when it is reset."""

    def __init__(self) -> None:
        self.empty = True
        self.alpha = 1.0
        self._value: Tensor | None = None

    def open(self, shape: Sequence[int], like: Tensor, alpha: float) -> tuple[Tensor, float]:
        """The tensor to add to, and its factor, which is 0 if its contents are invalid.

        Args:
            shape: Shape of the parameter.
            like: Tensor that gives dtype (float32 or wider) and device.
            alpha: Factor of the sum, as far as it is known; later sums use the first one.
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
        """The tensor to add to, with valid contents; see :meth:`open`."""
        value, beta = self.open(shape, like, alpha)
        return value.zero_() if beta == 0.0 else value

    def read(self, alpha: float) -> Tensor:
        """``alpha`` times the sum; the tensor is rescaled in place, so that repeated reads cost nothing."""
        assert self._value is not None
        if alpha != self.alpha:
            self._value.mul_(alpha / self.alpha)
            self.alpha = alpha
        return self._value
