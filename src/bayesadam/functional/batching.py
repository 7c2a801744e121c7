"""How functions with gradients of their own are mapped by ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def batch_first(size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The tensors with the mapped axis in front; those that are not mapped are repeated along it, without memory.

    Args:
        size: Of the axis.
        in_dims: The axis of each tensor, ``None`` where it is not mapped.
        tensors: Some may be ``None`` themselves.
    """
    return [
        None if tensor is None else tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        for tensor, axis in zip(tensors, in_dims, strict=True)
    ]
