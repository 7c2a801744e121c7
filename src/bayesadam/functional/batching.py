"""Helpers for autograd functions that are mapped by ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["batch_first"]


def batch_first(size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Move the mapped axis of tensors to the front; tensors that are not mapped are expanded along it without copies.

    Args:
        size: Length of the axis.
        in_dims: Mapped axis of each tensor, or ``None`` if it is not mapped.
        tensors: Tensors, of which some may be ``None``.
    """
    return [
        None if tensor is None else tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        for tensor, axis in zip(tensors, in_dims, strict=True)
    ]
