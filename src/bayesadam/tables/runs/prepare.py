"""From settings to data: reading the table, its target, the split of the rows, and the matrix of the inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from bayesadam.tables.encoder.csv_numbers import decimals_of, numbers_in
from bayesadam.tables.encoder.dates import Date, are_steps, as_times, date_of
from bayesadam.tables.encoder.describe import values_of
from bayesadam.tables.encoder.encoder import TableEncoder, numbers_rows
from bayesadam.tables.encoder.findings import Findings, Place, TableError, column_errors, quoted
from bayesadam.tables.encoder.frames import as_table, cleaned
from bayesadam.tables.encoder.read_table import TableFile, read_table
from bayesadam.tables.encoder.spelling import spelled
from bayesadam.tables.encoder.splits import (
    MIN_HELD_OUT,
    Split,
    group_split,
    random_split,
    ranks,
    require_all_classes,
    time_split,
)
from bayesadam.tables.encoder.table_target import Target, read_target
from bayesadam.tables.estimators.rows import copies_of
from bayesadam.tables.runs.settings import RunError, Settings

_DIFFERENT = 0.5
"""Share of distinct rows from which on equal rows always count as copies."""
_SHOWN = 3
Codes = NDArray[np.int64] | None
_COLUMNS = {
    "weights": "it has the weights of the rows",
    "group": "its groups determine the held-out rows",
    "time": "it determines the held-out rows",
}
"""Settings that name columns which are no inputs, and the reasons."""


@dataclass(frozen=True)
class Prepared:
    """The data for training and testing.

    Attributes:
        settings: The settings, with the names of columns as the table has them.
        file: The file of the table.
        inputs: Numbers, dates and texts of the inputs, of the rows that have a target.
        rows: Indices of these rows in the file.
        split: Indices of training and held-out rows among them.
        target: The target.
        y: Targets of the rows: values or indices of classes.
        encoder: The encoder, which was fitted to the training rows.
        matrix: Matrix of all rows, ``(N, D)``.
        groups: Groups of the training rows, where copies of a row form a group; or None.
        weights: Positive weights of the rows; or None.
        left_out: Reasons why columns are not inputs, by name.
        notes: Notes for the user.
    """

    settings: Settings
    file: TableFile
    inputs: pd.DataFrame
    rows: NDArray[np.int64]
    split: Split
    target: Target
    y: NDArray[Any]
    encoder: TableEncoder
    matrix: NDArray[np.float64]
    groups: Codes
    weights: NDArray[np.float64] | None
    left_out: dict[str, str]
    notes: list[str]

    def weights_of(self, rows: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return the weights of some of the rows; ``None`` if all are equal."""
        return None if self.weights is None else self.weights[rows]


def prepare(settings: Settings, frame: Any = None) -> Prepared:
    """Read the table, interpret its columns, and split its rows.

    Args:
        settings: Settings of the fit.
        frame: The table, if it is not read from the file of the settings.

    Raises:
        TableError: The table cannot be used as it is.
        RunError: The table lacks a column that the settings name.
        NotEnoughMemory: The table is too large.
    """
    if frame is None:
        file = read_table(settings.data, delimiter=settings.delimiter, decimal=settings.decimal)
    else:
        file = TableFile(settings.data, as_table(frame), first_line=0)
    settings, notes = _with_names(settings, file.table.column_names)
    table = as_table(file.table)
    decimals = decimals_of(table, file.decimal)
    table = cleaned(table, settings.missing, decimals)
    column, decimal = table.column(settings.target), decimals[settings.target]
    with column_errors(f"the target {settings.target!r}", column):
        target = read_target(settings.target, column, settings.task, place=file.place, decimal=decimal)
    for name in ("noise", "transform", "likelihood"):
        if target.classes and getattr(settings, name) is not None:
            raise RunError(f"{name} is for numbers to predict, but {target.name!r} has classes")
    rows = np.flatnonzero(target.known)
    weights = _weights(settings, table.take(rows), decimals, lambda row: file.place(int(rows[row])))
    if weights is not None:
        rows, weights, unused = rows[weights > 0], weights[weights > 0], int((weights == 0).sum())
        are = "1 row of weight 0 is" if unused == 1 else f"{unused:,} rows of weight 0 are"
        notes += [f"{are} left out"] * (unused > 0)
    table, y = table.take(rows), target.values[rows]

    def place(row: int) -> str:
        return file.place(int(rows[row]))

    copies, copied = _copies(settings, table, place)
    split = _split(settings, table, decimals, y if target.classes else None, copies)
    if target.classes:
        require_all_classes(split, y, target.classes)
    special = {column: why for name, why in _COLUMNS.items() if (column := getattr(settings, name))}
    special = {name: why for name, why in special.items() if name not in settings.keep}
    inputs = table.drop_columns([settings.target, *special])
    lists = {name: getattr(settings, name) for name in ("drop", "keep", "category", "date", "missing")}
    encoder = TableEncoder(decimal=file.decimal, day_first=settings.day_first, **lists)
    encoder.fit(inputs.take(split.training))
    findings = Findings(place)
    matrix = encoder.encode(inputs, findings)
    read = [*encoder.notes(inputs, place=place), *findings.cells]
    groups = ranks(table.column(settings.group), "the groups") if settings.group else copies
    return Prepared(
        settings=settings,
        file=file,
        inputs=pd.DataFrame({c.name: values_of(c, table.column(c.name)) for c in encoder.columns_}),
        rows=rows,
        split=split,
        target=target,
        y=y,
        encoder=encoder,
        matrix=matrix,
        groups=None if groups is None else groups[split.training],
        weights=weights,
        left_out={**special, **encoder.left_out_},
        notes=[
            *target.cautions,
            *file.notes,
            *notes,
            *target.notes,
            *copied,
            *_time_notes(settings, table, split, encoder),
            *read,
        ],
    )


def _with_names(settings: Settings, columns: list[str]) -> tuple[Settings, list[str]]:
    """Return the settings with the columns' own spelling, and a note on each name that was spelt otherwise.

    Raises:
        RunError: Columns do not exist. The message names all of them.
    """
    lower = [column.lower() for column in columns]
    wrong: list[str] = []
    notes: list[str] = []

    def spelt(setting: str, name: str) -> str:
        if name not in columns:
            name = spelled(name)
        if name in columns:
            return name
        if lower.count(name.lower()) == 1:
            column = columns[lower.index(name.lower())]
            notes.append(f"{name!r} is the column {column!r}")
            return column
        near = get_close_matches(name, columns, 1) or get_close_matches(name.lower(), columns, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        wrong.append(f"{setting} must be a column of the table, got {name!r}{hint}")
        return name

    changed: dict[str, Any] = {}
    for setting in ("target", *_COLUMNS, "drop", "keep", "category", "date"):
        given = getattr(settings, setting)
        if given is not None:
            many = isinstance(given, tuple)
            changed[setting] = tuple(spelt(setting, name) for name in given) if many else spelt(setting, given)
    if wrong:
        raise RunError(f"{'; '.join(wrong)}; the columns are {quoted(columns)}")
    return replace(settings, **changed), notes


def _copies(settings: Settings, table: pa.Table, place: Place) -> tuple[Codes, list[str]]:
    """Return a number for each row, equal for copies that must stay together, and notes about copies."""
    compared = [
        field.name
        for field in table.schema
        if not pa.types.is_nested(field.type)
        and field.name != settings.target
        and (field.name in settings.keep or not (field.name in settings.drop or numbers_rows(table.column(field.name))))
    ]
    copies, by_chance = copies_of(table.select(compared).to_pandas(), table.select([settings.target]).to_pandas())
    _, first, count = np.unique(copies, return_index=True, return_counts=True)
    more = len(copies) - len(first)
    if not more:
        return None, []
    by_chance = by_chance or settings.held_out * len(first) < MIN_HELD_OUT
    if len(first) < _DIFFERENT * len(copies) and by_chance:
        return None, [
            f"only {len(first):,} of the {len(copies):,} rows are different: equal rows may be trained on and held out"
        ]
    repeated = sorted(np.flatnonzero(count > 1), key=lambda number: first[number])
    shown = [np.flatnonzero(copies == number)[:2] for number in repeated[:_SHOWN]]
    places = ", ".join(f"{place(int(copy))} of {place(int(row))}" for row, copy in shown)
    further = ", ..." if len(repeated) > _SHOWN else ""
    are = f"{more:,} row{' is a copy' if more == 1 else 's are copies'} of another one ({places}{further})"
    if settings.group:
        return None, [are]
    return copies, [are if settings.time else f"{are}: copies are held out together"]


def _split(settings: Settings, table: pa.Table, decimals: dict[str, str], labels: Codes, copies: Codes) -> Split:
    if settings.group:
        return group_split(table.column(settings.group), settings.group, settings.held_out, settings.seed)
    if settings.time:
        times, decimal = table.column(settings.time), decimals[settings.time]
        return time_split(times, settings.time, settings.held_out, day_first=settings.day_first, decimal=decimal)
    return random_split(len(table), settings.held_out, settings.seed, labels, copies)


def _time_notes(settings: Settings, table: pa.Table, split: Split, encoder: TableEncoder) -> list[str]:
    """Return notes on dates that hold out the last rows, but are no inputs, and on some that had better do so.

    To keep a date that spans less than a year is not advised: what the networks learn of its trend is wrong later.
    """
    if (name := settings.time) and name not in settings.keep:
        times, wanted = table.column(name).take(split.training), name in settings.date
        date = date_of(times, name, day_first=settings.day_first, wanted=wanted)
        return [f"to use the {date.repeated} of {name!r} as inputs: keep=[{name!r}]"] if date and date.parts else []
    if settings.time or settings.group:
        return []
    dates = [column for column in encoder.columns_ if isinstance(column, Date)]
    return [
        f"the rows are in the order of {date.name!r}, in regular steps, but random ones are held out; to hold out the "
        f"last ones instead, as for a forecast: time={date.name!r}" + f" keep=[{date.name!r}]" * ("year" in date.parts)
        for date in dates
        if are_steps(as_times(table.column(date.name), date.order))
    ]


def _weights(settings: Settings, table: pa.Table, decimals: dict[str, str], place: Place) -> NDArray[np.float64] | None:
    if settings.weights is None:
        return None
    weights = numbers_in(table.column(settings.weights), decimals[settings.weights])
    wrong = np.flatnonzero(~(weights >= 0))
    if len(wrong):
        value = table.column(settings.weights)[int(wrong[0])].as_py()
        raise TableError(f"weights must be numbers of at least 0 in every row, got {value!r} in {place(int(wrong[0]))}")
    if not weights.any():
        raise TableError(f"weights must be positive in some rows, got 0 in all {len(weights):,}")
    return weights
