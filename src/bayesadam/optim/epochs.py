"""The number of training examples, found from the sizes of the minibatches, and doubts about ``num_data``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bayesadam.sharding import rank_and_size

FAR_ABOVE = 4.0
"""Ratio of ``batch_size`` and ``num_data`` above which ``num_data`` cannot be meant."""


class Epoch(NamedTuple):
    """One pass through the training data.

    Attributes:
        minibatches: Their number.
        examples: Their number, on this rank.
    """

    minibatches: int
    examples: int


class Epochs:
    """Finds the epochs in the sizes of a model's training passes, of which the last of an epoch is smaller.

    If the number of examples is no multiple of the batch size, a data loader ends every epoch with a smaller minibatch,
    whatever order, augmentation or accumulation of gradients there is. If every minibatch goes through the model
    several times (for several samples, or two views of an image), the smaller one does, too, and tells how often. An
    epoch counts only if the next one has the same sizes, so that other reasons for a smaller minibatch do not matter.
    Without smaller minibatches (``drop_last=True``) nothing is found.
    """

    def __init__(self) -> None:
        self._found: Epoch | None = None
        self._last: Epoch | None = None
        self._size, self._full, self._short, self._ends = 0, 0, 0, 0

    def see(self, rows: int | None) -> None:
        """Take the number of rows of the next training pass; None if it is not known."""
        if rows is None:
            self._last = None
            self._start(0)
        elif self._size and rows == self._size and not self._short:
            self._full += 1
        elif self._size and rows < self._size and self._short in (0, rows):
            self._short, self._ends = rows, self._ends + 1
        else:
            self._found = self.latest()
            self._last = self._ended()
            self._start(rows)

    def latest(self) -> Epoch | None:
        """The epoch of the latest two in a row that had the same sizes; None if there were none."""
        ended = self._ended()
        return ended if ended is not None and ended == self._last else self._found

    def _ended(self) -> Epoch | None:
        """The epoch whose passes were seen since the start, if it may be complete."""
        if not self._ends or self._full % self._ends:
            return None
        batches = self._full // self._ends
        return Epoch(batches + 1, batches * self._size + self._short)

    def _start(self, size: int) -> None:
        """Begin an epoch with a pass of this size."""
        self._size, self._full, self._short, self._ends = size, int(size > 0), 0, 0


def passes(group: Mapping[str, Any], steps: int) -> float | None:
    """Number of times that so many steps went through ``num_data`` examples; None if the batch size is not known."""
    size = group.get("batch_size")
    return None if size is None else steps * size / group["num_data"]


def doubt(group: Mapping[str, Any], epoch: Epoch | None) -> str | None:
    """Say why ``num_data`` is far too small, and what to give; None if there is no certain reason.

    It is, if it is not above the number of minibatches of an epoch, as ``len(loader)`` is where ``len(loader.dataset)``
    was meant. No augmentation or repetition of the examples of a minibatch can have that effect. Without a known epoch,
    it is if a single step has more than four times as many examples.

    Args:
        group: Parameter group.
        epoch: What :class:`Epochs` has found.
    """
    num_data, size = group["num_data"], group.get("batch_size")
    if group["temperature"] == 0:  # then it only scales the widths
        return None
    if epoch is not None and num_data <= epoch.minibatches:
        examples = epoch.examples * rank_and_size()[1]
        seen = f"an epoch has {examples:,} examples in {epoch.minibatches:,} minibatches: give num_data={examples}"
    elif size is not None and size > FAR_ABOVE * num_data:
        seen = f"a single step has {size:g} examples: give the number of all training examples"
    else:
        return None
    return f"num_data is {num_data:g}, but {seen}, which is len(loader.dataset) and not len(loader)"
