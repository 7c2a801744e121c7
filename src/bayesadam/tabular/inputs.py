"""The inputs of a table: the interpretation of its columns, and their conversion to numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bayesadam.tabular.choose import LeftOut, choose
from bayesadam.tabular.columns import Column, from_json, to_json
from bayesadam.tabular.errors import Place, TableError, require_type, row_place
from bayesadam.tabular.findings import Findings
from bayesadam.tabular.memory import require_memory
from bayesadam.tabular.numbers import is_text, levels_of
from bayesadam.tabular.split import Rows
from bayesadam.tabular.written import decimal_of


@dataclass(frozen=True)
class Inputs:
    """The conversion of a table's columns to columns of numbers, which is learned from training rows and saved as JSON.

    Attributes:
        columns: The inputs, in the order of the table.
        left_out: Reasons why the other columns are not inputs, by name.
    """

    columns: tuple[Column, ...]
    left_out: Mapping[str, str]

    @classmethod
    def fit(
        cls,
        table: pa.Table,
        *,
        rows: Rows | None = None,
        left_out: Mapping[str, str] | None = None,
        keep: Sequence[str] | None = (),
        place: Place = row_place,
        decimal: str | None = None,
        day_first: bool = False,
    ) -> Inputs:
        """Learn from training rows; all rows determine only whether text is numbers, dates or categories.

        Args:
            table: The table with all rows.
            rows: Indices of the training rows; by default all rows.
            left_out: Names of columns that are not inputs, with the reasons.
            keep: Columns of numbers that are inputs even if they look like row numbers or identifiers; ``None`` keeps
                all columns of numbers.
            place: Function that returns the place of a row for messages.
            decimal: Decimal mark of numbers that are text; with ``None`` it is found from the columns.
            day_first: Whether 3/4/2021 is in April, if a column is ambiguous.

        Raises:
            TableError: Columns contain infinite values or text among numbers, a column to keep cannot be an input, or
                no column is left. The message names all such columns.
        """
        reasons = dict(left_out or {})
        columns: list[Column] = []
        refused: list[TableError] = []
        keepable: list[str] = []
        where = place if rows is None else (lambda row: place(int(rows[row])))
        names = [name for name in table.column_names if name not in reasons]
        decimals = _decimals({name: table.column(name) for name in names}, decimal)
        for name in names:
            kept = keep is None or name in keep
            whole = table.column(name)
            reading: dict[str, Any] = {"whole": whole, "whole_place": place, "decimal": decimals[name]}
            try:
                column = whole if rows is None else whole.take(rows)
                choice = choose(name, column, where, keep=kept, day_first=day_first, **reading)
                if isinstance(choice, LeftOut) and kept and keep is not None:
                    message = f"`keep` must be a column that can be an input, got {name!r}: {choice.reason}"
                    raise TableError(message, drop=(name,))
            except TableError as error:
                refused.append(error)
                continue
            if isinstance(choice, LeftOut):
                reasons[name] = choice.reason
                keepable += [name] * choice.may_be_kept
            else:
                columns.append(choice)
        if refused:
            raise _as_one(refused)
        if not columns:
            raise TableError(
                f"there must be a column to predict from, got none ({_listed(reasons)})",
                **({"keep": tuple(keepable)} if keepable else {}),
            )
        return cls(tuple(columns), reasons)

    @property
    def features(self) -> list[str]:
        """Names of the columns of the matrix."""
        return [name for column in self.columns for name in column.features]

    def codes(self, table: pa.Table, *, place: Place = row_place) -> NDArray[np.float64]:
        """Return the matrix before it is standardised, ``(N, len(features))`` in float64.

        Args:
            table: A table with all inputs; other columns are ignored.
            place: Function that returns the place of a row for messages.

        Raises:
            TableError: A column of numbers contains text or infinite values.
            NotEnoughMemory: The matrix is too large.
        """
        length, width = len(table), len(self.features)
        require_memory(8.0 * length * width, f"a matrix of {length:,} rows and {width:,} columns", "use fewer columns")
        matrix = np.empty((length, width))
        start = 0
        for column in self.columns:
            stop = start + len(column.features)
            matrix[:, start:stop] = column.encode(table.column(column.name), place, Findings())
            start = stop
        return matrix

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that :meth:`from_json` reads."""
        return {"columns": [to_json(column) for column in self.columns], "left_out": dict(self.left_out)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Inputs:
        """Create the inputs from the dictionary of :meth:`to_json`; KeyError, TypeError or ValueError if invalid."""
        for text in (*record["left_out"], *record["left_out"].values()):
            require_type(text, str)
        return cls(tuple(from_json(column) for column in record["columns"]), dict(record["left_out"]))


def _decimals(columns: Mapping[str, pa.ChunkedArray], given: str | None) -> dict[str, str]:
    """Return the decimal mark of each column, which for a column that is not text is a point.

    For ambiguous text it is a comma if another column has commas.
    """
    if given is not None:
        return dict.fromkeys(columns, given)
    found = {name: decimal_of(levels_of(values)) if is_text(values.type) else "." for name, values in columns.items()}
    usual = "," if "," in found.values() else "."
    return {name: mark or usual for name, mark in found.items()}


def _as_one(errors: Sequence[TableError]) -> TableError:
    remedy: dict[str, Any] = {}
    for error in errors:
        for name, value in error.remedy.items():
            remedy[name] = (*remedy.get(name, ()), *value)
    return TableError("; ".join(str(error) for error in errors), **remedy)


def _listed(reasons: Mapping[str, str]) -> str:
    shown = [f"{name!r}: {reason}" for name, reason in list(reasons.items())[:5]]
    return "; ".join(shown) + ("; ..." if len(reasons) > 5 else "") if shown else "there is no other"
