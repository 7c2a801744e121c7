"""Positions of the weights of one network in a flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Named tensors one after another in a vector, so that a rule sees one matrix for all members.

    Attributes:
        shapes: Shape of every tensor, by name and in order.
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

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Divide vectors ``(..., numel)`` into tensors by name, which are views where the memory layout allows it."""
        parts = flat.split_with_sizes(self.sizes, dim=-1)
        return {
            name: part.reshape((*flat.shape[:-1], *shape))
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
