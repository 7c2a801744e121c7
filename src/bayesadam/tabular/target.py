"""The target: the task, the original labels, and errors for columns that cannot be predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tabular.columns import have_few_levels, level_counts, odd_texts
from bayesadam.tabular.errors import Place, TableError, quoted, row_place
from bayesadam.tabular.numbers import are_integers, as_numbers, as_text, count_different, is_number, is_text
from bayesadam.tabular.written import are_plain, decimal_of, read_numbers

TASKS = ("regression", "classification")
FEW = 10
"""Maximum number of different whole numbers that are interpreted as classes."""
MAX_CLASSES = 1000
Label = bool | int | str


@dataclass(frozen=True)
class Target:
    """The target of a prediction.

    Attributes:
        name: Name of the column.
        task: "regression" or "classification".
        why: Reason for this task.
        classes: The labels of the file, sorted; empty for a regression.
    """

    name: str
    task: str
    why: str
    classes: tuple[Label, ...] = ()

    @classmethod
    def find(cls, name: str, column: pa.ChunkedArray, task: str | None = None, place: Place = row_place) -> Target:
        """Find the task from the values of all rows.

        Args:
            name: Name of the column.
            column: Values of the column, without missing values.
            task: One of ``TASKS``, if the user chose it.
            place: Function that returns the place of a row for messages.

        Raises:
            TableError: The column has dates, infinite values or text among numbers, has only one value, or a class has
                only one row.
        """
        if task not in (None, *TASKS):
            raise TableError(f"`task` must be one of {', '.join(TASKS)}, got {task!r}")
        kind = column.type
        if pa.types.is_temporal(kind):
            raise TableError(f"the target {name!r} must be numbers or classes, got dates: make numbers of them")
        if not (is_number(kind) or is_text(kind) or pa.types.is_boolean(kind)):
            raise TableError(f"the target {name!r} must be numbers or classes, got the type {kind}")
        if task == "regression":
            return cls._regression(name, column, as_numbers(column, name, place), "as `task` says")
        why = "as `task` says"
        if is_number(kind):
            values = as_numbers(column, name, place)
            if not are_integers(values):
                if task is None:
                    return cls._regression(name, column, values, "its values are numbers with decimals")
                raise TableError(
                    f"the target {name!r} must be text, truth values or whole numbers for `task` classification, "
                    f"got {values[values % 1 != 0][0]:g}",
                    task="regression",
                )
            distinct = count_different(column, values)
            if task is None and distinct > FEW:
                return cls._regression(name, column, values, f"its values are {distinct:,} different whole numbers")
            why = f"its values are {distinct} different whole numbers" if task is None else why
        elif task is None:
            why = "its values are true or false" if pa.types.is_boolean(kind) else "its values are text"
        return cls._classification(name, column, why)

    @classmethod
    def _regression(cls, name: str, column: pa.ChunkedArray, values: NDArray[np.float64], why: str) -> Target:
        if values.min() == values.max():
            if (count := count_different(column, values)) > 1:
                raise TableError(
                    f"the target {name!r} must have different values in double precision, got {count:,} whole numbers "
                    f"that are all {values[0]:g} there: subtract {column[0].as_py()} from them"
                )
            raise TableError(f"the target {name!r} must have different values, got {values[0]:g} in every row")
        return cls(name, "regression", why)

    @classmethod
    def _classification(cls, name: str, column: pa.ChunkedArray, why: str) -> Target:
        counts = level_counts(_label_text(name, column))
        if len(counts) == 1:
            raise TableError(f"the target {name!r} must have two classes at least, got {next(iter(counts))!r} only")
        if len(counts) > MAX_CLASSES or (len(counts) > FEW and 2 * len(counts) > len(column)):
            raise TableError(
                f"the target {name!r} must be numbers or classes, got text with {len(counts):,} different values "
                f"in {len(column):,} rows"
                if is_text(column.type)
                else f"the target {name!r} must have fewer classes, got {len(counts):,} in {len(column):,} rows"
            )
        single = [level for level, count in counts.items() if count == 1]
        if single:
            rule = f"every class of the target {name!r} must have two rows at least, got one of {quoted(single)}"
            if is_number(column.type):
                raise TableError(rule, task="regression")
            left = len(counts) - len(single)
            raise TableError(rule, **({"missing": tuple(single)} if is_text(column.type) and left > 1 else {}))
        labels: list[Any] = [_label(level, column.type) for level in counts]
        return cls(name, "classification", why, tuple(sorted(labels)))

    def encode(self, column: pa.ChunkedArray, place: Place = row_place) -> NDArray[Any]:
        """Return values in float64, or indices of the classes. The column must not have missing values.

        Raises:
            TableError: A value is not a number, or not one of the classes.
        """
        if self.task == "regression":
            return as_numbers(column, self.name, place)
        names = pa.array([str(label).lower() if isinstance(label, bool) else str(label) for label in self.classes])
        codes = compute.index_in(_label_text(self.name, column), value_set=names)
        row = compute.index(compute.is_null(codes), pa.scalar(True)).as_py()
        if row >= 0:
            raise TableError(
                f"the target {self.name!r} must be one of its classes, got {column[row].as_py()!r} in {place(row)}"
            )
        return codes.to_numpy().astype(np.int64)  # type: ignore[no-any-return]

    def check(self) -> None:
        """Raise ``ValueError`` if an attribute is invalid because a file is damaged."""
        if not isinstance(self.name, str) or self.task not in TASKS:
            raise ValueError(f"the target must be a column and its task, got {self.name!r} and {self.task!r}")
        labels = all(isinstance(label, Label) for label in self.classes)
        if not labels or bool(self.classes) != (self.task == "classification"):
            raise ValueError(f"classes must be labels, got {self.classes!r}")

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that :meth:`from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Target:
        """Create the target from the dictionary of :meth:`to_json`; KeyError or TypeError if it is invalid."""
        return cls(**{**record, "classes": tuple(record["classes"])})


def numbers_of(
    name: str, column: pa.ChunkedArray, task: str | None, place: Place = row_place, decimal: str | None = None
) -> pa.ChunkedArray:
    """Convert a target to float64 if its text consists of numbers, with nan for missing values; otherwise return it.

    Args:
        name: Name of the column.
        column: Values of the column.
        task: One of ``TASKS``, if the user chose it.
        place: Function that returns the place of a row for messages.
        decimal: Decimal mark, if it is known.

    Raises:
        TableError: Some texts among numbers are not numbers.
    """
    if not is_text(column.type) or task == "classification":
        return column
    counts = level_counts(column)
    levels = pa.array(list(counts), pa.string())
    if not len(levels):
        return column
    decimal = decimal or decimal_of(levels) or "."
    reading = read_numbers(levels, decimal)
    numbers = ~np.isnan(reading.values)
    mostly, few = 2 * numbers.sum() > len(levels), have_few_levels(counts)
    if reading.odd.any() and (task or (mostly and not few)):
        odd = levels.filter(pa.array(reading.odd))
        error = odd_texts(f"the target {name!r} must be a number in every row", column, odd, place)
        if not numbers.any():  # without these texts, no row would have a target
            error.remedy = {"task": "classification"} if few else {}
        raise error
    if not numbers.any() or reading.odd.any() or (task is None and few and are_plain(levels)):
        return column
    if reading.unit is None:
        units = sorted(set(reading.units[numbers]))
        raise TableError(f"the target {name!r} must be numbers in one unit, got {quoted(units)}")
    return pa.chunked_array([as_numbers(column, name, place, decimal)])


def _label(level: str, kind: pa.DataType) -> Label:
    if pa.types.is_boolean(kind):
        return level == "true"
    return int(level) if is_number(kind) else level


def _label_text(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return labels as text. In a column of whole numbers with missing values, 3.0 becomes "3"."""
    if not is_number(column.type):
        return as_text(column)
    try:
        return as_text(column.cast(pa.int64()))
    except pa.ArrowInvalid:
        largest = float(np.abs(column.cast(pa.float64(), safe=False).to_numpy()).max())
        raise TableError(
            f"the target {name!r} must be below 2**63 where its numbers are classes, got {largest:g}: `task` "
            "regression takes them as numbers, and in quotation marks they are text"
        ) from None
