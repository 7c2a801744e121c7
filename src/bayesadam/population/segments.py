"""Coordinates with and without noise, and the tensors that a rule gets for those of the first members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayesadam.population.members import Numbers, map_columns


@dataclass(frozen=True)
class Segment:
    """A range of coordinates, with noise or without.

    Attributes:
        part: Slice of the coordinates.
        noisy: Whether they are perturbed.
        numel: Number of all coordinates.
    """

    part: slice
    noisy: bool
    numel: int

    @property
    def whole(self) -> bool:
        """Whether the segment has all coordinates."""
        return self.part == slice(0, self.numel)

    def rows(self, tensor: Tensor) -> Tensor:
        """The segment's columns of a matrix, as a view."""
        return tensor if self.whole else tensor[..., self.part]

    def hyper(self, shared: Mapping[str, Any]) -> Numbers:
        """Hyper-parameters of these coordinates: rows of a prior are sliced, columns are not."""
        return map_columns(dict(shared), lambda column: column if column.shape[-1] == 1 else self.rows(column))


def segments(noisy: int, numel: int) -> list[Segment]:
    """The first ``noisy`` coordinates and the others, as segments that are not empty."""
    return [Segment(slice(lo, hi), lo < noisy, numel) for lo, hi in ((0, noisy), (noisy, numel)) if hi > lo]


@dataclass(frozen=True)
class View:
    """Tensors that are the same in every step of the first ``k`` members on one segment: views of the rows, made once.

    Attributes:
        segment: The segment.
        mean: Means, ``(k, n)``.
        state: Tensors of the rule, each ``(k, n)``.
        hyper: Hyper-parameters.
    """

    segment: Segment
    mean: Tensor
    state: Mapping[str, Tensor]
    hyper: Numbers


def views(
    parts: Sequence[Segment], count: int, mean: Tensor, state: Mapping[str, Tensor], hyper: Numbers
) -> list[View]:
    """Views of the first ``count`` members."""
    own = first(hyper, count)
    return [
        View(
            part,
            part.rows(mean[:count]),
            {name: part.rows(rows[:count]) for name, rows in state.items()},
            part.hyper(own),
        )
        for part in parts
    ]


def first(shared: Mapping[str, Any], count: int) -> Numbers:
    """Hyper-parameters of the first members."""
    return map_columns(dict(shared), lambda column: column[:count])
