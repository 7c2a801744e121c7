"""Iterating over a parameter and its state in cache-sized blocks, for any memory layout, and over local shards only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from bayesadam import noise
from bayesadam.sharding import local, place


@dataclass(frozen=True)
class Block:
    """A part of a parameter: ``start:stop`` of its flat view, or of its rows, or all of its local part.

    ``offset`` is the position of the part in the full (unsharded) tensor of ``full_shape``; a single number if it is
    flat.
    """

    start: int
    stop: int
    flat: bool
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    full_shape: tuple[int, ...]
    whole: bool = False

    def of(self, tensor: Tensor) -> Tensor:
        """This part of a tensor of the parameter's (local) shape, as a view."""
        if self.whole:
            return tensor
        return (tensor.view(-1) if self.flat else tensor)[self.start : self.stop]


def blocks(parameter: Tensor, others: Sequence[Tensor], size: int) -> Iterator[Block]:
    """Divide a parameter's local part; ``others`` are local tensors of the same shape that are divided with it.

    Blocks are flat if all tensors are contiguous and the shard is one run of the full tensor; otherwise they are whole
    rows of the first axis, so that strides, views and memory formats are kept.

    Args:
        parameter: Parameter to divide.
        others: Local tensors of the same shape.
        size: Approximate number of elements of a block: a multiple of a tile of noise.
    """
    here = local(parameter)
    if here.numel() == 0:
        return
    full_shape, offset = place(parameter)
    if here.numel() <= size:
        yield Block(0, here.numel(), False, tuple(here.shape), offset, full_shape, whole=True)
        return
    first = noise.contiguous_start(here.shape, offset, full_shape)
    if first is not None and all(t.is_contiguous() for t in (here, *others)):
        total = (math.prod(full_shape),)
        for start in range(0, here.numel(), size):
            stop = min(start + size, here.numel())
            yield Block(start, stop, True, (stop - start,), (first + start,), total)
        return
    rows = max(1, size // max(1, here[0].numel()))
    for start in range(0, here.shape[0], rows):
        stop = min(start + rows, here.shape[0])
        yield Block(start, stop, False, (stop - start, *here.shape[1:]), (offset[0] + start, *offset[1:]), full_shape)
