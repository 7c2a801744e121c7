"""Conversion of the files of each data set to a table, with names of columns and codes of targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesadam.data.columns import DIGITS
from bayesadam.data.formats import (
    Floats,
    cells,
    idx,
    libsvm,
    lines,
    mat5,
    numbers,
    one_hot,
    unpack,
    xlsx,
)

_COVERTYPE_LOW = np.array([1859, 0, 0, 0, -173, 0, 0, 0, 0, 0])
_COVERTYPE_HIGH = np.array([3858, 360, 66, 1397, 601, 7117, 254, 254, 254, 7173])
_NO_RATING = 99
_NUM_JOKES = 40


@dataclass(frozen=True)
class Table:
    """All rows of a data set, the published training part first.

    Attributes:
        x: Features; see ``Dataset`` for shapes.
        y: Targets, or labels from 0.
        features: Names of the columns of ``x``; empty if not known.
        targets: Names of the columns of ``y``, or of the classes.
        num_train: Rows of the published training part; None if there is no such part.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    features: tuple[str, ...]
    targets: tuple[str, ...]
    num_train: int | None = None


def regression(content: bytes, *, features: Sequence[str], targets: Sequence[str]) -> Table:
    """Numbers split at white space: features, then targets; further columns are left out."""
    return _regression([numbers(lines(content))], features, targets)


def energy(content: bytes, *, features: Sequence[str], targets: Sequence[str]) -> Table:
    """The publisher's workbook, rounded to the two decimals of uci/energy."""
    return _regression([xlsx(content).round(2)], features, targets)


def jura(*contents: bytes, features: Sequence[str], targets: Sequence[str]) -> Table:
    """Comma-separated with a header and row names: prediction set (trained on), then validation set."""
    parts = [numbers(lines(content)[1:], ",")[:, 1:] for content in contents]
    return _regression(parts, features, targets)


def sarcos(content: bytes, *, features: Sequence[str], targets: Sequence[str]) -> Table:
    """A MATLAB matrix."""
    return _regression([mat5(content)], features, targets)


def _regression(parts: Sequence[Floats], features: Sequence[str], targets: Sequence[str]) -> Table:
    data = np.concatenate(parts)
    d, k = len(features), len(targets)
    num_train = len(parts[0]) if len(parts) > 1 else None
    return Table(data[:, :d], data[:, d : d + k], tuple(features), tuple(targets), num_train)


def images(*contents: bytes, classes: Sequence[str]) -> Table:
    """Training images and labels, test images and labels, in IDX format: pixels scaled to [0, 1], flattened."""
    train, train_labels, test, test_labels = (idx(unpack(content)) for content in contents)
    pixels = np.concatenate([train, test]).reshape(len(train) + len(test), -1)
    x = np.divide(pixels, 255, dtype=np.float32)
    y = np.concatenate([train_labels, test_labels]).astype(np.int64)
    return Table(x, y, (), tuple(classes), len(train))


def usps(*contents: bytes) -> Table:
    """Training and test digits: the digit, then 256 grey values in [-1, 1]."""
    parts = [numbers(lines(unpack(content))) for content in contents]
    data = np.concatenate(parts)
    return Table(data[:, 1:], data[:, 0].astype(np.int64), (), tuple(DIGITS), len(parts[0]))


def usps_3_vs_5(*contents: bytes) -> Table:
    """All 3s (label 0) and 5s (label 1) of the training, then of the test digits."""
    table = usps(*contents)
    rows = (table.y == 3) | (table.y == 5)
    return Table(table.x[rows], (table.y[rows] == 5).astype(np.int64), (), ("3", "5"))


def signs(content: bytes, *, num_features: int, classes: Sequence[str]) -> Table:
    """LIBSVM text with labels -1 (to 0) and +1 (to 1)."""
    x, y = libsvm(lines(content), num_features)
    return Table(x, (y + 1) // 2, (), tuple(classes))


def mushroom(content: bytes, *, features: Sequence[str]) -> Table:
    """One-hot letters, ``?`` being one of them; label 1 is edible."""
    data = cells(lines(content))
    x, names = one_hot(data[:, 1:], features)
    return Table(x, (data[:, 0] == "e").astype(np.int64), names, ("poisonous", "edible"))


def last_column(*contents: bytes, classes: Sequence[str]) -> Table:
    """Numbers split at white space, the class (from 1) last: training, then test part."""
    parts = [numbers(lines(unpack(content))) for content in contents]
    data = np.concatenate(parts)
    return Table(data[:, :-1], data[:, -1].astype(np.int64) - 1, (), tuple(classes), len(parts[0]))


def covertype(content: bytes, *, features: Sequence[str], classes: Sequence[str]) -> Table:
    """UCI's integers; the first ten columns of the file are scaled to [0, 1], which is undone here."""
    data = numbers(lines(unpack(content))[1:], ",")
    data[:, :10] = np.round(_COVERTYPE_LOW + data[:, :10] * (_COVERTYPE_HIGH - _COVERTYPE_LOW))
    return Table(data[:, :-1], data[:, -1].astype(np.int64) - 1, tuple(features), tuple(classes))


def adult(*contents: bytes, columns: Sequence[str], numeric: Sequence[str], label: str) -> Table:
    """Rows with an unknown value are dropped; words become one-hot, the column ``label`` the class.

    The test part starts with a line that is no row and ends each income with a full stop.
    """
    parts = [cells([row.rstrip(".") for row in lines(content) if not row.startswith("|")]) for content in contents]
    parts = [part[(part != "?").all(axis=1)] for part in parts]
    data = np.concatenate(parts)
    classes, y = np.unique(data[:, columns.index(label)], return_inverse=True)
    words = [name for name in columns if name != label and name not in numeric]
    indicators, names = one_hot(data[:, [columns.index(name) for name in words]], words)
    x = np.concatenate([data[:, [columns.index(name) for name in numeric]].astype(float), indicators], axis=1)
    return Table(x, y.astype(np.int64), (*numeric, *names), tuple(classes.tolist()), len(parts[0]))


def jester(content: bytes) -> Table:
    """Ratings in [-10, 10] of the 40 most rated jokes, in joke order, by the users who rated all of them."""
    ratings = numbers(lines(unpack(content)), ",")[:, 1:]
    counts = (ratings != _NO_RATING).sum(axis=0)
    jokes = np.sort(np.argsort(-counts, kind="stable")[:_NUM_JOKES])
    ratings = ratings[:, jokes][(ratings[:, jokes] != _NO_RATING).all(axis=1)]
    return Table(ratings, np.empty((len(ratings), 0)), (), ())


def financial(content: bytes) -> Table:
    """Daily price differences of 21 stocks, whose names are the header."""
    header, *rows = lines(content)
    x = numbers(rows)
    return Table(x, np.empty((len(x), 0)), tuple(header.split(",")), ())


def characters(content: bytes) -> Table:
    """Codes of all characters but the last, and of their successors; the byte order mark and CR count as characters."""
    points = np.frombuffer(content.decode("utf-8").encode("utf-32-le"), "<u4")
    alphabet = np.flatnonzero(np.bincount(points))
    codes = np.searchsorted(alphabet, points)
    return Table(codes[:-1], codes[1:].copy(), (), tuple(map(chr, alphabet)))
