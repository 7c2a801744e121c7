"""The held-out part: at random, whole groups, or the last in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tabular.dates import as_times, order_of
from bayesadam.tabular.errors import TableError, quoted, row_place
from bayesadam.tabular.numbers import as_text, is_text, levels_of

MIN_TRAINING, MIN_HELD_OUT = 10, 2
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Numbers of rows, ascending.

    Attributes:
        training: To be trained on.
        held_out: To be tested on.
        how: In words.
    """

    training: Rows
    held_out: Rows
    how: str


def random_split(
    rows: int,
    fraction: float,
    seed: int,
    labels: NDArray[np.int64] | None = None,
    copies: NDArray[np.int64] | None = None,
) -> Split:
    """At random; of every class about the same share, and at least one row is trained on.

    Args:
        rows: How many there are.
        fraction: To hold out.
        seed: Of the permutation.
        labels: Classes, if it is a classification.
        copies: A number for each row, the same for rows that are copies of each other: they stay together.

    Raises:
        TableError: Too few rows.
    """
    if copies is not None:
        _, first, number = np.unique(copies, return_index=True, return_inverse=True)
        held_out = _at_random(len(first), fraction, seed, None if labels is None else labels[first])[number]
    else:
        held_out = _at_random(rows, fraction, seed, labels)
    return _split(held_out, "a random part" + ("" if labels is None else " with the same share of every class"))


def copies_of(columns: Sequence[pa.ChunkedArray]) -> NDArray[np.int64]:
    """A number for each row, the same for rows that are equal in all columns; columns of lists do not count."""
    generator = np.random.default_rng(0)
    # Each value of a column has a random number of 64 bits, and those of a row are added: no two rows but equal ones
    # have the same sum, with a probability of all but rows**2 / 2**64.
    total = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        if pa.types.is_nested(column.type):
            continue
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        encoded = whole if pa.types.is_dictionary(whole.type) else whole.dictionary_encode(null_encoding="encode")
        codes = compute.fill_null(encoded.indices, len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        total += generator.integers(2**64, size=len(encoded.dictionary) + 1, dtype=np.uint64)[codes]
    numbers: NDArray[np.int64] = np.unique(total, return_inverse=True)[1].astype(np.int64)
    return numbers


def group_split(groups: pa.ChunkedArray, name: str, fraction: float, seed: int) -> Split:
    """Whole groups at random, until they have the share of the rows.

    Raises:
        TableError: Missing values, fewer than two groups, or too few rows.
    """
    codes = _codes(groups, f"`group` {name}")
    counts = np.bincount(codes)
    if len(counts) < 2:
        raise TableError(f"`group` {name}: the column must have two groups at least, got one")
    order = np.random.default_rng(seed).permutation(len(counts))
    wanted = np.cumsum(counts[order]) - 0.5 * counts[order] <= fraction * len(codes)
    wanted[0], wanted[-1] = True, False
    chosen = order[wanted]
    return _split(np.isin(codes, chosen), f"{len(chosen):,} of the {len(counts):,} groups of {name!r}, at random")


def time_split(times: pa.ChunkedArray, name: str, fraction: float, *, day_first: bool = False) -> Split:
    """The last rows in time; rows of the same time stay together.

    Args:
        times: Numbers, dates, or dates that are text.
        name: Of the column.
        fraction: To hold out.
        day_first: Whether 3/4/2021 is in April, where the column does not tell.

    Raises:
        TableError: Missing values, text, a single time, or too few rows.
    """
    if is_text(times.type):
        found = order_of(levels_of(times), day_first=day_first)
        if found is None:
            raise TableError(f"`time` {name}: the column must be numbers or dates, got {times[0].as_py()!r}")
        times = pa.chunked_array([as_times(times, name, row_place, found[0])])
    codes = _codes(times, f"`time` {name}")  # of the sorted values
    if codes.max() == 0:
        raise TableError(f"`time` {name}: the column must have two times at least, got one")
    border = max(int(np.sort(codes)[-max(round(fraction * len(codes)), 1)]), 1)
    row = int(np.flatnonzero(codes == border)[0])
    return _split(codes >= border, f"the rows from {name} = {times[row].as_py()} on")


def group_codes(groups: pa.ChunkedArray) -> Rows:
    """A number for each group."""
    return _codes(groups, "group")


def require_all_classes(split: Split, labels: NDArray[np.int64], classes: tuple[object, ...]) -> None:
    """Refuse a split by group or time that leaves a class without training rows.

    Raises:
        TableError: It does.
    """
    missing = sorted(set(range(len(classes))) - set(np.unique(labels[split.training]).tolist()))
    if missing:
        names = [str(classes[code]) for code in missing]
        raise TableError(f"every class must have training rows, got none of {quoted(names)}, which are all held out")


def _at_random(rows: int, fraction: float, seed: int, labels: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """Which rows are held out."""
    order = np.random.default_rng(seed).permutation(rows)
    if labels is not None:
        # Each class spreads evenly over the order, so that its start has the share of every class.
        ranks, counts = np.empty(rows), np.bincount(labels)
        by_class = order[np.argsort(labels[order], kind="stable")]
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        ranks[by_class] = (np.arange(rows) - starts + 0.5) / counts[labels[by_class]]
        order = order[np.argsort(ranks[order], kind="stable")]
    held_out = np.zeros(rows, dtype=bool)
    held_out[order[: round(fraction * rows)]] = True
    return held_out


def _codes(column: pa.ChunkedArray, what: str) -> Rows:
    if column.null_count:
        raise TableError(f"{what}: the column must have no missing values, got {column.null_count:,}")
    values = as_text(column) if is_text(column.type) else column
    encoded = values.unique()
    order = np.argsort(compute.rank(encoded, sort_keys="ascending").to_numpy())
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    codes: Rows = rank[compute.index_in(values, value_set=encoded).to_numpy()]
    return codes


def _split(held_out: NDArray[np.bool_], how: str) -> Split:
    training, tested = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    if len(training) < MIN_TRAINING or len(tested) < MIN_HELD_OUT:
        raise TableError(
            f"there must be {MIN_TRAINING} rows to train on and {MIN_HELD_OUT} to hold out at least, "
            f"got {len(training)} and {len(tested)}"
        )
    return Split(training, tested, how)
