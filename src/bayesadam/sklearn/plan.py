"""Which rows every member of an ensemble leaves out, and how large and long the training is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGE = 20_000
"""Rows from which on all members share their data and one held-out part, of which there are enough to calibrate by."""

HELD_OUT = 10_000
FULL_BATCH = 1024

FOLDS = 10
"""Parts that models of the rows left out are judged by, as those of their noise."""


@dataclass(frozen=True)
class Plan:
    """The rows left out.

    Attributes:
        left_out: ``(members, N)``: rows that a member never sees. Every row that some member leaves out is left out by
            several, where there are enough, so that averages of members can be judged by rows that none of them saw.
        shared: Whether all members leave out the same rows.
        fold: ``(N,)``, numbers from 0: parts of the rows by which models of the rows left out are judged in turn.
    """

    left_out: NDArray[np.bool_]
    shared: bool
    fold: NDArray[np.int64]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Rows that some member leaves out."""
        return np.flatnonzero(self.left_out.any(0))


def plan(rows: int, members: int | None, groups: NDArray[np.int64], seed: int) -> Plan:
    """Divide the rows: two random partitions, of which each member leaves out one part.

    Args:
        rows: ``N``.
        members: ``None``: 20 up to 5,000 rows, 10 up to 20,000, above that 5.
        groups: Numbers from 0, ``(N,)``: rows of one group are left out together.
        seed: Of the partitions.
    """
    if members is None:
        members = 20 if rows <= 5_000 else 10 if rows <= LARGE else 5
    distinct = int(groups.max()) + 1
    generator = np.random.default_rng(seed)
    left_out = np.zeros((members, rows), dtype=bool)
    fold = (np.random.default_rng([seed, 1]).permutation(distinct) % FOLDS)[groups]
    if distinct == 1:
        return Plan(left_out, False, fold)
    if rows > LARGE or members == 1:
        order = generator.permutation(distinct)[groups]
        wanted = min(HELD_OUT, math.ceil(rows / 10))
        sizes = np.bincount(order, minlength=distinct).cumsum()
        cut = max(1, min(distinct - 1, int(np.searchsorted(sizes, wanted)) + 1))
        left_out[:] = order < cut
        return Plan(left_out, True, fold)
    parts = [members] if members < 4 else [members - members // 2, members // 2]
    first = 0
    for count in parts:
        part = (generator.permutation(distinct) % count)[groups]
        left_out[first : first + count] = part == np.arange(count)[:, None]
        first += count
    return Plan(left_out, False, fold)


def default_steps(rows: int, batch_size: int, least: int) -> int:
    """Default number of training steps, used when neither ``epochs`` nor ``time_budget`` is given."""
    return max(least, min(20_000, 20 * math.ceil(rows / batch_size)))
