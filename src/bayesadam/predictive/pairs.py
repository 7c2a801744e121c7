"""Iterating over inputs with targets: a pair or a dict of tensors in batches of rows, or a loader of such batches."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bayesadam.predictive.batches import Rows, described, inputs_and_target, placed

Data = tuple[Any, Tensor] | Mapping[str, Any] | Iterable[Any]


def batches(data: Data, device: torch.device | None, batch_size: int | None = None) -> Iterator[tuple[Any, Tensor]]:
    """Yield inputs, as a model takes them, and targets; see :func:`batches_of_rows`."""
    return ((rows.batch, target) for rows, target in batches_of_rows(data, device, batch_size))


def batches_of_rows(
    data: Data, device: torch.device | None, batch_size: int | None = None
) -> Iterator[tuple[Rows, Tensor]]:
    """Yield inputs and targets on the device.

    Args:
        data: A tuple ``(inputs, targets)``, a dict with ``"labels"``, or a loader of such batches, see
            :func:`inputs_and_target`.
        device: Device to move them to; ``None`` leaves them where they are.
        batch_size: Rows of a tuple or dict in one batch, default see ``predictive.batches.ROWS``; a loader keeps its
            own.

    Raises:
        ValueError: The data are no loader, a batch has no targets, or its inputs and targets have different numbers of
            rows.
    """
    single = is_single(data)
    if not single:
        _check(data)
    for batch in [data] if single else data:
        inputs, target = inputs_and_target(batch)
        if not isinstance(target, Tensor):
            raise ValueError(
                "data must give pairs of inputs and a tensor of targets, or dicts with 'labels' (a single pair is a "
                f"tuple), got {described(batch)}"
            )
        rows = Rows(inputs)
        if target.ndim == 0 or len(target) != rows.count:
            raise ValueError(
                f"targets must have as many rows as the inputs, {rows.count}, got shape {tuple(target.shape)}"
            )
        step = (batch_size or rows.default_batch_size) if single else max(1, rows.count)
        for start in range(0, rows.count, step):
            part = rows.part(start, start + step)
            yield part.on(device), placed(target[start : start + step], device)


def is_single(data: Data) -> bool:
    """Whether data are one batch, which is divided, and no loader."""
    return isinstance(data, tuple | Mapping)


class Remembered:
    """A loader of inputs with targets that can be iterated over as before and keeps the first rows that it yields.

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
        for batch in self.data:
            for rows, target in batches_of_rows([batch], None) if self._left > 0 else ():
                if not self._pairs or target.shape[1:] == self._pairs[0][1].shape[1:]:
                    self._pairs.append((rows.part(0, self._left).batch, target[: self._left]))
                    self._left -= rows.count
            yield batch

    def __length_hint__(self) -> int:
        return operator.length_hint(self.data)

    def first(self) -> list[tuple[Any, Tensor]]:
        """The rows that were kept, in their batches; the first rows of the loader if it was not iterated over yet."""
        for _ in () if self._pairs else self:
            if self._left <= 0:
                break
        return self._pairs


def evenly(data: Data, count: int) -> Data:
    """At most ``count`` rows of a pair or dict, evenly spaced, so that sorted data are covered, too."""
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
    if is_single(data):
        rows = Rows(inputs_and_target(data)[0])
        return -(-rows.count // (batch_size or rows.default_batch_size))
    return operator.length_hint(data) or None


def _check(data: Any) -> None:
    """Raise ``ValueError`` if data, which are no pair, cannot be a loader, such as a data set of single rows."""
    if not isinstance(data, Iterable):
        raise ValueError(
            "data must be a pair of inputs and targets, a dict with 'labels', or a loader of them, got "
            f"{type(data).__name__} (a DataLoader makes batches of a data set)"
        )
