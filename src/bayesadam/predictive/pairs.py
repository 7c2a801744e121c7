"""Iterating over data: a pair of inputs and targets in batches of rows, or a loader of such pairs."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from bayesadam.predictive.batches import Rows, placed

Data = tuple[Any, Tensor] | Iterable[Any]


def batches(data: Data, device: torch.device | None, batch_size: int | None = None) -> Iterator[tuple[Any, Tensor]]:
    """Yield inputs, as a model takes them, and targets; see :func:`batches_of_rows`."""
    return ((rows.batch, target) for rows, target in batches_of_rows(data, device, batch_size))


def batches_of_rows(
    data: Data, device: torch.device | None, batch_size: int | None = None
) -> Iterator[tuple[Rows, Tensor]]:
    """Yield inputs and targets on the device.

    Args:
        data: A tuple ``(inputs, targets)``, or an iterable of such pairs.
        device: Device to move them to; ``None`` leaves them where they are.
        batch_size: Rows of a tuple in one batch, default see ``predictive.batches.ROWS``; a loader keeps its own.

    Raises:
        ValueError: The data are no loader, a batch is not a pair, or its inputs and targets have different numbers of
            rows.
    """
    single = isinstance(data, tuple)
    if not single:
        _check(data)
    for pair in [data] if single else data:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[1], Tensor):
            raise ValueError(
                "data must give pairs of inputs and a tensor of targets (a single pair is a tuple), "
                f"got {_described(pair)}"
            )
        inputs, target = pair
        if isinstance(inputs, list):  # the default collate function makes lists of tuples
            inputs = tuple(inputs)
        rows = Rows(inputs)
        if target.ndim == 0 or len(target) != rows.count:
            raise ValueError(
                f"targets must have as many rows as the inputs, {rows.count}, got shape {tuple(target.shape)}"
            )
        step = (batch_size or rows.default_batch_size) if single else max(1, rows.count)
        for start in range(0, rows.count, step):
            part = rows.part(start, start + step)
            yield part.on(device), placed(target[start : start + step], device)


class Remembered:
    """A loader of pairs that can be iterated over as before and keeps the first rows that it yields.

    Batches whose targets have another shape, as sequences of another length have, are not kept.

    Args:
        data: The loader.
        count: Number of rows to keep.

    Raises:
        ValueError: The data are no loader.
    """

    def __init__(self, data: Iterable[Any], count: int) -> None:
        _check(data)
        self.data = data
        self._pairs: list[tuple[Any, Tensor]] = []
        self._left = count

    def __iter__(self) -> Iterator[Any]:
        for pair in self.data:
            for rows, target in batches_of_rows([pair], None) if self._left > 0 else ():
                if not self._pairs or target.shape[1:] == self._pairs[0][1].shape[1:]:
                    self._pairs.append((rows.part(0, self._left).batch, target[: self._left]))
                    self._left -= rows.count
            yield pair

    def __length_hint__(self) -> int:
        return operator.length_hint(self.data)

    def first(self) -> list[tuple[Any, Tensor]]:
        """The rows that were kept, in their batches; the first rows of the loader if it was not iterated over yet."""
        for _ in () if self._pairs else self:
            if self._left <= 0:
                break
        return self._pairs


def evenly(data: tuple[Any, Tensor], count: int) -> tuple[Any, Tensor]:
    """At most ``count`` rows of a pair, evenly spaced, so that sorted data are covered, too."""
    parts = list(batches_of_rows(data, None, batch_size=sys.maxsize))
    if not parts:
        return data
    ((rows, target),) = parts
    if rows.count <= count:
        return rows.batch, target
    numbers = torch.arange(count, device=target.device) * rows.count // count
    return rows.select(numbers).batch, target[numbers]


def length(data: Data, batch_size: int | None = None) -> int | None:
    """Number of batches, if it is known."""
    if isinstance(data, tuple):
        rows = Rows(data[0])
        return -(-rows.count // (batch_size or rows.default_batch_size))
    return operator.length_hint(data) or None


def _check(data: Any) -> None:
    """Raise ``ValueError`` if data, which are no pair, cannot be a loader, such as a data set of single rows."""
    if not isinstance(data, Iterable):
        raise ValueError(
            f"data must be a pair of inputs and targets, or a loader of such pairs, got {type(data).__name__} "
            "(a DataLoader makes batches of a data set)"
        )


def _described(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {[type(item).__name__ for item in value]}"
    return type(value).__name__
