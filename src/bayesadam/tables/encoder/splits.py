"""Splits into training and held-out rows: at random, by groups, or by time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tables.encoder.csv_numbers import as_text, is_text, levels_of, numbers_in
from bayesadam.tables.encoder.dates import are_cells, as_times, order_of
from bayesadam.tables.encoder.findings import TableError, column_errors, quoted

MIN_TRAINING, MIN_HELD_OUT = 10, 2
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Indices of training and held-out rows, in ascending order.

    Attributes:
        training: Indices of the training rows.
        held_out: Indices of the held-out rows.
        how: The kind of split in words.
    """

    training: Rows
    held_out: Rows
    how: str


def random_split(
    rows: int, fraction: float, seed: int, labels: Rows | None = None, copies: Rows | None = None
) -> Split:
    """Split rows at random, with nearly the same share of every class, of which at least one row is a training row.

    Args:
        rows: Number of rows.
        fraction: Share of the rows to hold out.
        seed: Seed of the permutation.
        labels: Indices of classes, for a classification.
        copies: A number for each row, which copies of a row share. Copies are not divided.

    Raises:
        TableError: There are too few rows.
    """
    copies = np.arange(rows) if copies is None else copies
    _, first, number = np.unique(copies, return_index=True, return_inverse=True)
    held_out = _at_random(len(first), fraction, seed, None if labels is None else labels[first])
    return _split(held_out[number], "a random part" + ("" if labels is None else " with the same share of every class"))


def group_split(groups: pa.ChunkedArray, name: str, fraction: float, seed: int) -> Split:
    """Hold out random groups until they have the given share of the rows.

    Raises:
        TableError: There are missing values, fewer than two groups, or too few rows.
    """
    codes = ranks(groups, f"the column of groups {name!r}")
    counts = np.bincount(codes)
    if len(counts) < 2:
        raise TableError(f"the column of groups {name!r} must have two groups at least, got one")
    order = np.random.default_rng(seed).permutation(len(counts))
    wanted = np.cumsum(counts[order]) - 0.5 * counts[order] <= fraction * len(codes)
    wanted[0], wanted[-1] = True, False
    chosen = order[wanted]
    return _split(np.isin(codes, chosen), f"{len(chosen):,} of the {len(counts):,} groups of {name!r}, at random")


def time_split(
    times: pa.ChunkedArray, name: str, fraction: float, *, day_first: bool = False, decimal: str = "."
) -> Split:
    """Hold out the last rows in time. Rows with the same time are not divided.

    Args:
        times: Numbers or dates, which may be text.
        name: Name of the column.
        fraction: Share of the rows to hold out.
        day_first: Whether 3/4/2021 is in April, if the column is ambiguous.
        decimal: Decimal mark of numbers that are text.

    Raises:
        TableError: There are missing values or text, there is only one time, or there are too few rows.
    """
    what = f"the column of times {name!r}"
    shown = times
    if is_text(times.type):
        order = order_of(levels_of(times), day_first=day_first)
        values = as_times(times, order[0]) if order else numbers_in(times, decimal, "")
        wrong = np.isnan(values) & are_cells(times)
        if wrong.any():
            raise TableError(f"{what} must be numbers or dates, got {times[int(wrong.argmax())].as_py()!r}")
        times = pa.chunked_array([pa.array(values, from_pandas=True)])
    codes = ranks(times, what)
    if codes.max() == 0:
        raise TableError(f"{what} must have two times at least, got one")
    border = max(int(np.sort(codes)[-max(round(fraction * len(codes)), 1)]), 1)
    return _split(
        codes >= border, f"the rows from {name} = {shown[int(np.flatnonzero(codes == border)[0])].as_py()} on"
    )


def ranks(column: pa.ChunkedArray, what: str) -> Rows:
    """Return the rank of each row's value among the different values.

    Raises:
        TableError: There are missing values.
    """
    if column.null_count:
        raise TableError(f"{what} must have no missing values, got {column.null_count:,}")
    values = (as_text(column) if is_text(column.type) else column).combine_chunks()
    with column_errors(what, column):
        codes: Rows = compute.rank(values, tiebreaker="dense").to_numpy().astype(np.int64) - 1
    return codes


def require_all_classes(split: Split, labels: Rows, classes: tuple[object, ...]) -> None:
    """Check that every class has training rows after a split by group or time.

    Raises:
        TableError: A class has no training rows.
    """
    missing = sorted(set(range(len(classes))) - set(np.unique(labels[split.training]).tolist()))
    if missing:
        names = [str(classes[code]) for code in missing]
        raise TableError(f"every class must have training rows, got none of {quoted(names)}, which are all held out")


def _at_random(rows: int, fraction: float, seed: int, labels: Rows | None) -> NDArray[np.bool_]:
    """Return a mask of the held-out rows."""
    order = np.random.default_rng(seed).permutation(rows)
    if labels is not None:
        # Each class is spread evenly over the order, so that its beginning has the same share of every class.
        by_class, counts = np.empty(rows), np.bincount(labels)
        sorted_order = order[np.argsort(labels[order], kind="stable")]
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        by_class[sorted_order] = (np.arange(rows) - starts + 0.5) / counts[labels[sorted_order]]
        order = order[np.argsort(by_class[order], kind="stable")]
    held_out = np.zeros(rows, dtype=bool)
    held_out[order[: round(fraction * rows)]] = True
    return held_out


def _split(held_out: NDArray[np.bool_], how: str) -> Split:
    training, tested = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    if len(training) < MIN_TRAINING or len(tested) < MIN_HELD_OUT:
        raise TableError(
            f"there must be {MIN_TRAINING} rows to train on and {MIN_HELD_OUT} to hold out at least, "
            f"got {len(training)} and {len(tested)}"
        )
    return Split(training, tested, how)
