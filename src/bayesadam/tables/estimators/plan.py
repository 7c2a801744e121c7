"""The rows that every member of an ensemble leaves out, and the default number of training steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesadam.tables.estimators.calibration import effective_rows

LARGE = 20_000
"""Number of rows above which all members share one held-out part, which is then large enough for calibration."""

AT_ONCE = 2**22
"""Maximum size of an intermediate result, which limits the number of rows that are predicted together."""

HELD_OUT = 10_000
FULL_BATCH = 1024

FOLDS = 10
"""Number of folds for the evaluation of models that are fitted to the rows left out, such as models of the noise."""


@dataclass(frozen=True)
class Plan:
    """The rows that every member leaves out.

    Attributes:
        left_out: Mask ``(members, N)`` of the rows that a member never sees. If there are enough members, every row is
            left out by several of them, so that averages of members can be evaluated on rows that none of them saw.
        shared: Whether all members leave out the same rows.
        fold: Fold of each row, ``(N,)``, numbered from 0, for the evaluation of models that are fitted to the rows left
            out.
        independent: Effective number of groups, ``N^2`` over the sum of their squared sizes, as a share of the rows; 1
            without groups.
    """

    left_out: NDArray[np.bool_]
    shared: bool
    fold: NDArray[np.int64]
    independent: float

    @property
    def rows(self) -> NDArray[np.int64]:
        """Indices of the rows that some member leaves out."""
        return np.flatnonzero(self.left_out.any(0))

    def counts(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights of ``rows`` that add up to the number of independent rows."""
        row_weights = weight[self.rows]
        return np.asarray(row_weights * (self.independent * effective_rows(row_weights) / row_weights.sum()))

    def masks(self, count: int) -> list[NDArray[np.bool_]]:
        """Return masks of the rows that the fits of other models leave out one after another, ``count`` at most."""
        folds = [self.left_out[0]] if self.shared else [self.fold % count == fold for fold in range(count)]
        return [fold for fold in folds if fold.any()]


def plan(rows: int, members: int | None, groups: NDArray[np.int64], seed: int) -> Plan:
    """Divide the rows into two random partitions, of which each member leaves out one part.

    Args:
        rows: Number ``N`` of rows.
        members: Number of members. The default is 20 for up to 5,000 rows, 10 for up to 20,000, and 5 for more.
        groups: Group of each row, ``(N,)``, numbered from 0. Rows of one group are left out together.
        seed: Seed of the partitions.
    """
    if members is None:
        members = 20 if rows <= 5_000 else 10 if rows <= LARGE else 5
    distinct = int(groups.max()) + 1
    generator = np.random.default_rng(seed)
    left_out = np.zeros((members, rows), dtype=bool)
    fold = (np.random.default_rng([seed, 1]).permutation(distinct) % FOLDS)[groups]
    independent = effective_rows(np.bincount(groups).astype(np.float64)) / rows
    if distinct == 1:
        return Plan(left_out, False, fold, independent)
    if rows > LARGE or members == 1:
        order = generator.permutation(distinct)[groups]
        wanted = min(HELD_OUT, math.ceil(rows / 10))
        sizes = np.bincount(order, minlength=distinct).cumsum()
        cut = max(1, min(distinct - 1, int(np.searchsorted(sizes, wanted)) + 1))
        left_out[:] = order < cut
        return Plan(left_out, True, fold, independent)
    parts = [members] if members < 4 else [members - members // 2, members // 2]
    first = 0
    for count in parts:
        part = (generator.permutation(distinct) % count)[groups]
        left_out[first : first + count] = part == np.arange(count)[:, None]
        first += count
    return Plan(left_out, False, fold, independent)


def default_steps(rows: int, batch_size: int, least: int) -> int:
    """Default number of training steps, used when neither ``epochs`` nor ``time_budget`` is given."""
    return max(least, min(20_000, 20 * math.ceil(rows / batch_size)))
