"""From settings to data: the table is read, the target understood, rows held out, and the inputs made a matrix."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.runs.errors import RunError
from bayesadam.runs.settings import Settings
from bayesadam.tabular import (
    Preprocessing,
    Split,
    TableError,
    TableFile,
    Target,
    describe,
    group_codes,
    group_split,
    open_table,
    random_split,
    require_all_classes,
    require_memory,
    time_split,
)
from bayesadam.tabular.errors import quoted

_COPIES = 6
"""Beside the weights stand their statistics, gradients, samples and buffers."""
_CURVES = 6
"""Of every member and epoch there are losses, with copies."""
_WIDTHS, _MEMBERS = (50,), 20


@dataclass(frozen=True)
class Prepared:
    """All that is needed to train and to test.

    Attributes:
        file: Where the table comes from.
        held_out: The held-out rows; the others are not kept, as their matrix is.
        rows: Numbers of the rows that are used, in the file.
        split: Numbers of training and held-out rows, among those that are used.
        preprocessing: Learned from the training rows.
        inputs: Of the training rows, ``(N, D)``.
        targets: Of all used rows, values or numbers of classes.
        groups: Of the training rows, or None.
        described: Every input in words; see :func:`bayesadam.tabular.describe`.
        notes: For the user.
    """

    file: TableFile
    held_out: pa.Table
    rows: NDArray[np.int64]
    split: Split
    preprocessing: Preprocessing
    inputs: NDArray[np.float32]
    targets: NDArray[Any]
    groups: NDArray[np.int64] | None
    described: list[dict[str, Any]]
    notes: list[str]

    def fingerprint(self) -> str:
        """Of the training rows: the same only for the same table, used in the same way."""
        digest = hashlib.sha256(repr(self.preprocessing).encode())
        for array in (self.inputs, self.targets[self.split.training]):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def prepare(settings: Settings) -> Prepared:
    """Read and understand the table.

    Raises:
        TableError: It cannot be used as it is.
        RunError: A column that the settings name is not there.
        NotEnoughMemory: It, or the networks, are too large.
    """
    file = open_table(settings.data, settings.delimiter, settings.decimal)
    _check_names(settings, file.columns)
    table = file.read()
    table, rows, notes = _with_target(settings, table)

    def place(row: int) -> str:
        return file.place(int(rows[row]))

    column = table.column(settings.target)
    target = Target.find(settings.target, column, settings.task, place)
    targets = target.encode(column, place)
    split = _split(settings, table, target, targets)
    if target.classes:
        require_all_classes(split, targets, target.classes)
    left_out = {name: "--drop says so" for name in settings.drop}
    if settings.group:
        left_out[settings.group] = "its groups decide what is held out"
    if settings.time:
        left_out[settings.time] = "it decides what is held out"
    for name in settings.keep:
        left_out.pop(name, None)
    preprocessing = Preprocessing.fit(
        table, target, rows=split.training, left_out=left_out, keep=settings.keep, place=place
    )
    _check_size(settings, len(preprocessing.features), max(len(target.classes), 1))
    inputs = preprocessing.transform(table, rows=split.training, place=place)
    groups = group_codes(table.column(settings.group).take(split.training)) if settings.group else None
    return Prepared(
        file=file,
        held_out=table.take(split.held_out),
        rows=rows,
        split=split,
        preprocessing=preprocessing,
        inputs=inputs,
        targets=targets,
        groups=groups,
        described=[describe(column, table.column(column.name)) for column in preprocessing.columns],
        notes=notes + preprocessing.notes(),
    )


def _check_names(settings: Settings, columns: Sequence[str]) -> None:
    named: list[tuple[str, str | None]] = [
        ("--target", settings.target),
        ("--group", settings.group),
        ("--time", settings.time),
    ]
    named += [("--drop", name) for name in settings.drop] + [("--keep", name) for name in settings.keep]
    for option, name in named:
        if name is not None and name not in columns:
            there = quoted(list(columns))
            raise RunError(f"{option} must be a column of {Path(settings.data).name}, got {name!r}; they are {there}")


def _with_target(settings: Settings, table: pa.Table) -> tuple[pa.Table, NDArray[np.int64], list[str]]:
    """The rows that have a target, and their numbers."""
    column = table.column(settings.target)
    known = ~compute.is_null(column, nan_is_null=True).to_numpy()
    rows, missing = np.flatnonzero(known), int((~known).sum())
    if not missing:
        return table, rows, []
    if not len(rows):
        raise TableError(f"the target {settings.target!r} must have values, got none in {len(known):,} rows")
    if not settings.drop_missing_target:
        raise TableError(
            f"the target {settings.target!r} must be known in every row, it is missing in {missing:,} of "
            f"{len(known):,}: --drop-missing-target leaves them out"
        )
    return table.take(rows), rows, [f"{missing:,} rows without a target are left out"]


def _split(settings: Settings, table: pa.Table, target: Target, targets: NDArray[Any]) -> Split:
    if settings.group:
        return group_split(table.column(settings.group), settings.group, settings.held_out, settings.seed)
    if settings.time:
        return time_split(table.column(settings.time), settings.time, settings.held_out)
    labels = targets if target.classes else None
    return random_split(len(table), settings.held_out, settings.seed, labels)


def _check_size(settings: Settings, inputs: int, outputs: int) -> None:
    widths = [inputs, *(settings.hidden if settings.hidden is not None else _WIDTHS), outputs]
    weights = sum(a * b + b for a, b in pairwise(widths))
    members = settings.members or _MEMBERS
    require_memory(
        4.0 * _COPIES * weights * members,
        f"training {members:,} networks of {weights:,} weights",
        "use smaller --hidden or fewer --members",
    )
    epochs = settings.epochs or 0
    require_memory(
        8.0 * _CURVES * epochs * members,
        f"the losses of {epochs:,} epochs of {members:,} networks",
        "use fewer --epochs",
    )
