"""``TableEncoder``: a scikit-learn transformer that turns the columns of a data frame into a matrix of numbers."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from bayesadam.checks import is_of
from bayesadam.scaling import LARGEST
from bayesadam.tables.encoder import describe
from bayesadam.tables.encoder.column_types import (
    MAX_LEVELS,
    MIN_ROWS,
    Category,
    Column,
    Number,
    Text,
    Truth,
    from_json,
    have_few_levels,
    level_counts,
    to_json,
)
from bayesadam.tables.encoder.csv_numbers import (
    are_codes,
    are_plain,
    beyond_exact,
    decimals_of,
    is_number,
    is_text,
    numbers_in,
    read_numbers,
)
from bayesadam.tables.encoder.dates import Date, date_of, order_of
from bayesadam.tables.encoder.findings import Findings, Place, TableError, column_errors, quoted, row_place
from bayesadam.tables.encoder.frames import as_table, cleaned
from bayesadam.tables.encoder.memory import require_memory
from bayesadam.tables.encoder.spelling import spelled

FEW = 10
"""Maximum number of different whole numbers that are interpreted as classes."""
_IDENTIFIER = re.compile(
    r"(?i:(^|[_\s.-])(id|uuid|guid|row[_\s]?(id|no|nr|number|names?|index)))$|(?i:^(index|__index_level_\d+__)$)|[a-z](Id|ID)$"
)
_YEARS = 1500, 2200
_OWN = 0.9
"""Minimum share of different values in a column of row numbers; equal values belong to copies of rows."""


@dataclass(frozen=True)
class Encoded:
    """A matrix that :meth:`TableEncoder.transform` returned, which an estimator takes in place of a table.

    Attributes:
        matrix: ``(N, D)``.
        encoder: The encoder, which the estimator keeps; needed for a fit only.
    """

    matrix: NDArray[np.float64]
    encoder: TableEncoder | None = None

    def __len__(self) -> int:
        return len(self.matrix)


@dataclass(eq=False, repr=False, kw_only=True)
class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The conversion of a data frame's columns to a matrix of numbers, which is learned from training rows.

    Columns may hold numbers, truth values, categories, text or dates, in their own types or as text as people write it
    ("$1,234.50", "12 %", "3/4/2021"), and have missing values. Every column gets one of the types in
    ``bayesadam.tables.encoder.column_types``, or is left out for a reason.

    Args:
        drop: Columns that are not inputs.
        keep: Columns that are inputs even if they look like row numbers, identifiers or names. ``None`` keeps all
            columns of numbers.
        category: Columns whose numbers are codes of categories. Numbers in a column of categories of a data frame are
            codes anyway.
        date: Columns that hold dates, such as 20210304.
        missing: Texts and numbers that mean a missing value in any column.
        decimal: Decimal mark of numbers that are text. With ``None`` it is found from the columns.
        day_first: Whether 3/4/2021 is in April, if a column is ambiguous.

    Attributes:
        columns_: The inputs, in the order of the table.
        left_out_: Reasons why the other columns are not inputs, by name.
    """

    drop: Sequence[str] = ()
    keep: Sequence[str] | None = None
    category: Sequence[str] = ()
    date: Sequence[str] = ()
    missing: Sequence[object] = ()
    decimal: str | None = None
    day_first: bool = False

    columns_: tuple[Column, ...] = field(init=False)
    left_out_: dict[str, str] = field(init=False)

    def fit(self, X: Any, y: Any = None) -> TableEncoder:
        """Learn the types of the columns from training rows.

        Args:
            X: A data frame of pandas or polars, a table of pyarrow, or a matrix.
            y: Not used.

        Raises:
            TableError: A column to keep, or of dates, cannot be that, options exclude each other, or no column is left.
            ValueError: An option is not a list.
        """
        self._check_lists()
        table = as_table(X)
        decimals = decimals_of(table, self.decimal)
        table = cleaned(table, self.missing, decimals)
        named = (*self.drop, *(self.keep or ()), *self.category, *self.date)
        unknown = [name for name in named if name not in table.column_names]
        if unknown:
            raise TableError(f"the table must have the columns that are named, it lacks {quoted(unknown)}")
        for what, names, others in (
            ("dropped and used", self.drop, (*(self.keep or ()), *self.category, *self.date)),
            ("a category and a date", self.category, self.date),
        ):
            both = [name for name in names if name in others]
            if both:
                raise TableError(f"a column must not be both {what}, got {both[0]!r}")
        reasons = dict.fromkeys(self.drop, "it is dropped")
        columns: list[Column] = []
        for name in table.column_names:
            if name in reasons:
                continue
            with column_errors(f"column {name!r}", table.column(name)):
                chosen = self._choose(name, table.column(name), decimals[name])
            if isinstance(chosen, str):
                reasons[name] = chosen
                if self.keep is not None and name in self.keep:
                    raise TableError(f"a column to keep must be a possible input, got {name!r}: {chosen}")
            else:
                columns.append(chosen)
        if not columns:
            shown = "; ".join(f"{name!r}: {reason}" for name, reason in list(reasons.items())[:5])
            raise TableError(f"there must be a column to predict from, got none ({shown or 'there is no other'})")
        self.columns_, self.left_out_ = tuple(columns), reasons
        self.n_features_in_ = table.num_columns
        self.feature_names_in_ = np.array(table.column_names, dtype=object)
        return self

    def notes(self, X: Any, *, place: Place = row_place) -> list[str]:
        """Return lines, with examples, on guesses about the columns of a table.

        Args:
            X: A table with all inputs.
            place: Function that returns the place of a row.
        """
        table = self._table(X)
        parts = ((column, table.column(column.name)) for column in self.columns_)
        return [note for part in parts for note in describe.notes(*part, place, day_first=self.day_first)]

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the matrix before it is standardised, ``(N, len(get_feature_names_out()))``.

        Cells that cannot be read count as missing.

        Args:
            X: A table with all inputs; other columns are ignored.

        Raises:
            TableError: Columns are missing.
            NotEnoughMemory: The matrix is too large.
        """
        check_is_fitted(self)
        return self.encode(X, Findings())

    def encode(self, X: Any, findings: Findings) -> NDArray[np.float64]:
        """Return the array of :meth:`transform`, which scikit-learn may convert to a data frame (``set_output``).

        Args:
            X: A table with all inputs.
            findings: Object to which values are added that cannot be read or are unlike the training rows.
        """
        table = self._table(X)
        names = set(table.column_names)
        lacking = [column.name for column in self.columns_ if column.name not in names]
        if lacking:
            rule = "columns" if hasattr(X, "columns") else "columns, with their names,"
            what = (
                "it: add an empty column of this name"
                if len(lacking) == 1
                else "them: add empty columns of their names"
            )
            alike = {spelled(name).strip().lower(): name for name in table.column_names}
            other = alike.get(spelled(lacking[0]).strip().lower())
            advice = ""  # a table without any of the columns is another one
            if other is not None:
                advice = f" (rename its column {other!r})"
            elif len(lacking) < len(self.columns_):
                advice = f" (to predict without {what})"
            raise TableError(
                f"the table must have the {rule} of the training data, it lacks {quoted(lacking, 50)}{advice}"
            )
        widths = [len(column.features) for column in self.columns_]
        shape = len(table), sum(widths)
        require_memory(8.0 * shape[0] * shape[1], f"a matrix of {shape[0]:,} rows and {shape[1]:,} columns")
        matrix = np.empty(shape)
        for column, stop in zip(self.columns_, np.cumsum(widths), strict=True):
            with column_errors(f"column {column.name!r}", table.column(column.name)):
                matrix[:, stop - len(column.features) : stop] = column.encode(table.column(column.name), findings)
        return matrix

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the columns of the matrix."""
        check_is_fitted(self)
        return np.array([name for column in self.columns_ for name in column.features], dtype=object)

    def reading(self, decimal: str | None, missing: Sequence[str]) -> TableEncoder:
        """Return a copy for a table with another decimal mark, or further texts that mean a missing value."""
        changed = copy.copy(self)
        changed.missing = (*self.missing, *missing)
        if decimal is not None:
            changed.decimal = decimal
            changed.columns_ = tuple(
                replace(column, decimal=decimal) if isinstance(column, Number) else column for column in self.columns_
            )
        return changed

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that :meth:`from_json` reads."""
        options = {name: list(v) if isinstance(v, tuple) else v for name, v in self.get_params().items()}
        return {
            "options": {**options, "missing": [str(value) for value in self.missing]},
            "columns": [to_json(column) for column in self.columns_],
            "left_out": self.left_out_,
            "names": self.feature_names_in_.tolist(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TableEncoder:
        """Create a fitted encoder from the dictionary of :meth:`to_json`; as for columns, an error if it is invalid."""
        lists: dict[str, Any] = {n: tuple(value) for n, value in record["options"].items() if isinstance(value, list)}
        encoder = cls(**{**record["options"], **lists})
        encoder._check_lists()
        encoder.columns_ = tuple(from_json(column) for column in record["columns"])
        encoder.left_out_ = dict(record["left_out"])
        names = tuple(record["names"])
        if not is_of(names, tuple[str, ...]):
            raise TypeError(f"names must be texts, got {names!r:.100}")
        encoder.n_features_in_ = len(names)
        encoder.feature_names_in_ = np.array(names, dtype=object)
        return encoder

    def _check_lists(self) -> None:
        for name in ("drop", "keep", "category", "date", "missing"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) and not (name == "keep" and value is None):
                raise ValueError(f"{name} must be a list, got {value!r}")

    def _table(self, X: Any) -> pa.Table:
        """Return new rows, in which what means a missing value is missing."""
        table = as_table(X)
        decimals = decimals_of(table, self.decimal or ".")
        decimals |= {column.name: column.decimal for column in self.columns_ if isinstance(column, Number)}
        return cleaned(table, self.missing, decimals)

    def _choose(self, name: str, column: pa.ChunkedArray, decimal: str) -> Column | str:
        """Return the type of a column, or the reason why it is left out."""
        kind, cells = column.type, column.drop_null()
        if not len(cells):
            return "all its values are missing"
        if name in self.date:
            date = date_of(column, name, day_first=self.day_first, wanted=True)
            if date is None:
                raise TableError(f"a column of dates must hold dates, got {cells[0].as_py()!r} in {name!r}")
            return date
        if name in self.category:
            return Category.fit(column, name)
        if is_number(kind) or pa.types.is_duration(kind):
            return self._choose_number(name, column, decimal)
        if not (pa.types.is_boolean(kind) or pa.types.is_temporal(kind) or is_text(kind)):
            return f"it is of the type {kind}, which is neither numbers nor text"
        if not column.null_count and len(cells.unique()) == 1:
            return f"it is the same in all training rows ({column[0].as_py()!r})"
        if pa.types.is_boolean(kind):
            return Truth(name, column.null_count > 0)
        if pa.types.is_temporal(kind):
            return Date.fit(column, name)
        return self._choose_text(name, column, decimal)

    def _choose_number(self, name: str, column: pa.ChunkedArray, decimal: str, unit: str = "") -> Column | str:
        values = numbers_in(column, decimal, unit)
        numbers = values[~np.isnan(values)]
        if not len(numbers):
            return f"all its numbers are infinite or above {LARGEST:g}"
        if (
            name not in (self.keep or ())
            and beyond_exact(column, values).any()
            and have_few_levels(level_counts(column))
        ):
            return Category.fit(column, name)
        if numbers.min() == numbers.max() and len(numbers) == len(values):
            return f"it is the same in all training rows ({column[0].as_py()!r})"
        if are_whole(numbers) and self.keep is not None and name not in self.keep:
            if numbers_rows(pa.chunked_array([values])):
                start = "" if values[0] <= FEW else f", from {values[0]:.0f} on"
                return f"it numbers the rows{start}{_if_input(name)}"
            if _IDENTIFIER.search(name):
                distinct = len(np.unique(numbers))
                if distinct > MAX_LEVELS or distinct * MIN_ROWS > len(numbers):
                    return f"it is an identifier by its name, with {distinct:,} different values{_if_input(name)}"
                return Category.fit(column, name)
        return Number.fit(column, name, decimal, unit)

    def _choose_text(self, name: str, column: pa.ChunkedArray, decimal: str) -> Column | str:
        counts = level_counts(column)
        levels = pa.array(list(counts), pa.string())
        if set(counts) <= {"true", "false"}:
            return Truth(name, column.null_count > 0)
        if order := order_of(levels, day_first=self.day_first):
            return Date.fit(column, name, order[0])
        read = read_numbers(levels, decimal)
        numbers = ~np.isnan(read.values)
        few, codes = have_few_levels(counts), are_codes(levels)
        mostly, frequent = 2 * numbers.sum() > len(levels), max(counts.values()) >= MIN_ROWS
        if mostly and frequent and pa.types.is_dictionary(column.type):  # codes, as whoever made the table says
            return Category.fit(column, name)
        only_numbers = numbers.any() and not read.odd.any() and not codes
        if only_numbers and read.unit is not None and not (few and decimal == "." and are_plain(levels)):
            return self._choose_number(name, column, decimal, read.unit)
        if few and not (only_numbers and read.unit is None and len(counts) > FEW):
            return Category.fit(column, name)
        if only_numbers:
            return f"it is numbers in several units ({quoted(sorted(set(read.units[numbers])))})"
        if mostly and read.unit is not None and not codes:
            return self._choose_number(name, column, decimal, read.unit)
        if len(counts) == sum(counts.values()) and name not in (self.keep or ()):
            return f"it is text that is different in every row, like a name or an identifier{_if_input(name)}"
        return Text.fit(column, name) or "it is text without letters"


def _if_input(name: str) -> str:
    return f" (if it is an input: keep=[{name!r}])"


def numbers_rows(column: pa.ChunkedArray) -> bool:
    """Whether a column numbers the rows, possibly with gaps for held-out rows and with equal numbers for copies.

    A column of years may look like this, but is an input.
    """
    if not is_number(column.type):
        return False
    values = column.cast(pa.float64(), safe=False).to_numpy()
    if not np.isfinite(values).all() or not are_whole(values):
        return False
    few = 10
    _, first = np.unique(values, return_index=True)
    distinct = values[np.sort(first)]
    if len(distinct) <= max(2 * few, _OWN * len(values)) or (np.diff(distinct) <= 0).any():
        return False
    years = _YEARS[0] <= distinct[0] and distinct[-1] <= _YEARS[1]
    return bool(0 <= distinct[0] and distinct[-1] - distinct[0] < 2 * len(distinct) + few and not years)


def are_whole(values: NDArray[Any]) -> bool:
    """Whether all values that are not nan are whole numbers."""
    return bool((values[~np.isnan(values)] % 1 == 0).all())
