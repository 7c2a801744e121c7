"""From settings to data: reading the table, encoding the target, splitting the rows, and the matrix of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
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
    copies_of,
    group_codes,
    group_split,
    numbers_of,
    open_table,
    random_split,
    require_all_classes,
    time_split,
)
from bayesadam.tabular.choose import numbers_rows
from bayesadam.tabular.columns import Column, Number
from bayesadam.tabular.dates import Date, as_times
from bayesadam.tabular.describe import how_read
from bayesadam.tabular.errors import Place, quoted, row_place
from bayesadam.tabular.numbers import as_numbers

_DIFFERENT = 0.5
"""Smallest share of distinct rows for which equal rows count as copies. With a smaller share, rows are equal because
the columns have few values.
"""
_SHOWN = 3


@dataclass(frozen=True)
class Prepared:
    """The data for training and testing.

    Attributes:
        file: The file of the table.
        columns: Numbers, dates and texts of the inputs of all rows that are used, for the report.
        rows: Indices, in the file, of the rows that are used.
        split: Indices of training and held-out rows among the rows that are used.
        preprocessing: The preprocessing, learned from the training rows.
        inputs: Matrix of the training rows, ``(N, D)``.
        held_out_inputs: Matrix of the held-out rows.
        targets: Targets of all rows that are used: values or indices of classes.
        groups: Groups of the training rows, where copies of a row form a group; or None.
        notes: Notes for the user.
    """

    file: TableFile
    columns: pd.DataFrame
    rows: NDArray[np.int64]
    split: Split
    preprocessing: Preprocessing
    inputs: NDArray[np.float32]
    held_out_inputs: NDArray[np.float32]
    targets: NDArray[Any]
    groups: NDArray[np.int64] | None
    notes: list[str]


def prepare(settings: Settings) -> Prepared:
    """Read the table, interpret its columns, and split its rows.

    Raises:
        TableError: The table cannot be used as it is.
        RunError: The table lacks a column that the settings name.
        NotEnoughMemory: The table is too large.
    """
    file = open_table(settings.data, settings.delimiter, settings.decimal, missing=settings.missing)
    _check_names(settings, file.columns)
    table, rows, notes = _with_target(settings, file)

    def place(row: int) -> str:
        return file.place(int(rows[row]))

    column = table.column(settings.target)
    target = Target.find(settings.target, column, settings.task, place)
    for name in ("noise", "transform", "likelihood"):
        value = getattr(settings, name)
        if value is not None and target.task != "regression":
            raise RunError(f"`{name}` must be left out of a classification, got {value!r}")
    targets = target.encode(column, place)
    copies, told = _copies(settings, table, place)
    split = _split(settings, table, target, targets, copies)
    if target.classes:
        require_all_classes(split, targets, target.classes)
    left_out = {name: "it is in `drop`" for name in settings.drop}
    if settings.group:
        left_out[settings.group] = "its groups determine the held-out rows"
    if settings.time:
        left_out[settings.time] = "it determines the held-out rows"
    for name in settings.keep:
        left_out.pop(name, None)
    preprocessing = replace(
        Preprocessing.fit(
            table,
            target,
            rows=split.training,
            left_out=left_out,
            keep=settings.keep,
            place=place,
            decimal=file.decimal,
            day_first=settings.day_first,
        ),
        delimiter=file.delimiter,
        missing=settings.missing,
    )
    inputs = preprocessing.transform(table, rows=split.training, place=place)
    groups = group_codes(table.column(settings.group)) if settings.group else copies
    return Prepared(
        file=file,
        columns=pd.DataFrame({c.name: _values(c, table.column(c.name)) for c in preprocessing.inputs.columns}),
        rows=rows,
        split=split,
        preprocessing=preprocessing,
        inputs=inputs,
        held_out_inputs=preprocessing.transform(table, rows=split.held_out, place=place),
        targets=targets,
        groups=None if groups is None else groups[split.training],
        notes=[*file.notes, *notes, *told, *preprocessing.notes(table, place=place, day_first=settings.day_first)],
    )


def _values(column: Column, values: pa.ChunkedArray) -> Any:
    """Return the values of an input as numbers, dates or texts."""
    if isinstance(column, Number):
        return as_numbers(values, column.name, decimal=column.decimal, unit=column.unit)
    if isinstance(column, Date):
        return as_times(values, column.name, row_place, column.order)
    return pd.array([None if value is None else str(value) for value in values.to_pylist()], dtype="object")


def _check_names(settings: Settings, columns: Sequence[str]) -> None:
    """Raise one error that names all columns that do not exist."""
    like = {column.lower(): column for column in columns}
    messages: list[str] = []
    remedy: dict[str, Any] = {}
    for option in ("target", "group", "time", "drop", "keep"):
        given = getattr(settings, option)
        for name in given if isinstance(given, tuple) else (given,):
            if name is None or name in columns:
                continue
            messages.append(f"`{option}` must be a column of {Path(settings.data).name}, got {name!r}")
            meant = [like[text] for text in get_close_matches(name.lower(), like, 1)]
            if isinstance(given, tuple):
                remedy[option] = (*(n for n in remedy.get(option, given) if n != name), *meant)
            elif meant:
                remedy[option] = meant[0]
    if messages:
        raise RunError(f"{'; '.join(messages)}; the columns are {quoted(list(columns))}", **remedy)


def _with_target(settings: Settings, file: TableFile) -> tuple[pa.Table, NDArray[np.int64], list[str]]:
    """Return the rows that have a target, their indices, and notes about the target's column."""
    table, name = file.read(), settings.target
    place = table.column_names.index(name)
    column = table.column(place)
    numbers = numbers_of(name, column, settings.task, file.place, file.decimal)
    notes = how_read(name, column, file.place, file.decimal) if numbers is not column else []
    table = table.set_column(place, name, numbers)
    known = ~compute.is_null(numbers, nan_is_null=True).to_numpy()
    rows, missing = np.flatnonzero(known), int((~known).sum())
    if not missing:
        return table, rows, notes
    if not len(rows):
        raise TableError(f"the target {name!r} must have values, got none in {len(known):,} rows")
    return (
        table.take(rows),
        rows,
        [*notes, f"{missing:,} {'row' if missing == 1 else 'rows'} without a target left out"],
    )


def _copies(settings: Settings, table: pa.Table, place: Place) -> tuple[NDArray[np.int64] | None, list[str]]:
    """Return a number for each row, equal for copies that must stay together, and notes about copies."""
    looked_at = [name for name in table.column_names if name not in settings.drop]
    columns = [
        table.column(name) for name in looked_at if name in settings.keep or not numbers_rows(table.column(name))
    ]
    copies = copies_of(columns)
    _, first, count = np.unique(copies, return_index=True, return_counts=True)
    more = len(copies) - len(first)
    if not more:
        return None, []
    if len(first) < _DIFFERENT * len(copies):
        return None, [
            f"only {len(first):,} of the {len(copies):,} rows are different: equal rows may be trained on and held out"
        ]
    repeated = sorted(np.flatnonzero(count > 1), key=lambda number: first[number])
    shown = [np.flatnonzero(copies == number)[:2] for number in repeated[:_SHOWN]]
    places = ", ".join(f"{place(int(copy))} of {place(int(row))}" for row, copy in shown)
    further = ", ..." if len(repeated) > _SHOWN else ""
    are = f"{more:,} row{' is a copy' if more == 1 else 's are copies'} of another one ({places}{further})"
    if settings.group or settings.time:
        return None, [are]
    return copies, [f"{are}: copies are held out together"]


def _split(
    settings: Settings, table: pa.Table, target: Target, targets: NDArray[Any], copies: NDArray[np.int64] | None
) -> Split:
    if settings.group:
        return group_split(table.column(settings.group), settings.group, settings.held_out, settings.seed)
    if settings.time:
        times = table.column(settings.time)
        return time_split(times, settings.time, settings.held_out, day_first=settings.day_first)
    labels = targets if target.classes else None
    return random_split(len(table), settings.held_out, settings.seed, labels, copies)
