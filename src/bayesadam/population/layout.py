"""Where the weights of one network lie in a flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Named tensors one after another: rules then see one matrix for all members instead of many small tensors.

    Attributes:
        shapes: Of every tensor, by name and in order.
    """

    shapes: Mapping[str, torch.Size]

    @property
    def sizes(self) -> list[int]:
        """Number of elements of every tensor."""
        return [shape.numel() for shape in self.shapes.values()]

    @property
    def numel(self) -> int:
        """Length of the vector."""
        return sum(self.sizes)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Tensors of shape ``(..., *shape)`` to one of shape ``(..., numel)``."""
        parts = [
            tensors[name].flatten(tensors[name].ndim - len(shape)) if shape else tensors[name].unsqueeze(-1)
            for name, shape in self.shapes.items()
        ]
        return torch.cat(parts, dim=-1)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """The inverse of :meth:`flatten`; views where the memory allows it."""
        parts = flat.split_with_sizes(self.sizes, dim=-1)
        return {
            name: part.reshape(*flat.shape[:-1], *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
