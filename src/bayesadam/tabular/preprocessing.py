"""The conversion of a table to a matrix, which is the same for training rows and new rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bayesadam.files import DamagedFile, read_json, reading, write_json
from bayesadam.scaling import LARGEST, column_scales, in_one_unit, standardized
from bayesadam.tabular.columns import MIN_ROWS, Category, Codes, Number
from bayesadam.tabular.dates import Date
from bayesadam.tabular.describe import how_dated, how_read, why_category
from bayesadam.tabular.errors import Place, TableError, quoted, require_type, row_place
from bayesadam.tabular.findings import Findings
from bayesadam.tabular.inputs import Inputs
from bayesadam.tabular.memory import require_memory
from bayesadam.tabular.split import Rows
from bayesadam.tabular.target import Target

FORMAT_VERSION = 1
"""Version of the format of the file, which has a digest and that of its model."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Preprocessing:
    """The conversion of a table to a matrix, which is learned from training rows and saved as JSON.

    Each column is converted to numbers, and the matrix is standardised like that of an estimator, by
    :func:`bayesadam.scaling.input_scales`.

    Attributes:
        target: The target.
        inputs: The interpretation of the columns.
        mean: Mean of every column of the matrix, which is subtracted; ``len(inputs.features)`` numbers.
        std: Standard deviation of every column of the matrix, by which it is divided.
        delimiter: Delimiter of the CSV file from which it was learned, and the first guess for other files.
        missing: Texts that mean a missing value in any column of a file.
    """

    target: Target
    inputs: Inputs
    mean: tuple[float, ...]
    std: tuple[float, ...]
    delimiter: str | None = None
    missing: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        table: pa.Table,
        target: Target,
        *,
        rows: Rows | None = None,
        left_out: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        place: Place = row_place,
        decimal: str | None = None,
        day_first: bool = False,
    ) -> Preprocessing:
        """Learn from training rows.

        Args:
            table: The table with all rows.
            target: The target, whose column is not an input.
            rows: Indices of the training rows; by default all rows.
            left_out: Names of further columns that are not inputs, with the reasons.
            keep: Columns of numbers that are inputs even if they look like row numbers or identifiers.
            place: Function that returns the place of a row for messages.
            decimal: Decimal mark of numbers that are text; with ``None`` it is found from the columns.
            day_first: Whether 3/4/2021 is in April, if a column is ambiguous.

        Raises:
            TableError: Columns contain infinite values or text among numbers, a column to keep cannot be an input, or
                no column is left. The message names all such columns.
        """
        left_out = {target.name: "it is the target", **(left_out or {})}
        inputs = Inputs.fit(
            table, rows=rows, left_out=left_out, keep=keep, place=place, decimal=decimal, day_first=day_first
        )
        where = place if rows is None else (lambda row: place(int(rows[row])))
        scales = []
        for column in inputs.columns:
            values = table.column(column.name)
            scales.append(_scales(column.encode(values if rows is None else values.take(rows), where, Findings())))
        reasons = {name: reason for name, reason in inputs.left_out.items() if name != target.name}
        widths = in_one_unit(*(np.concatenate(values) for values in list(zip(*scales, strict=True))[1:]))
        shifts = np.concatenate([shift for shift, *_ in scales])
        return cls(target, replace(inputs, left_out=reasons), tuple(shifts.tolist()), tuple(widths.tolist()))

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Types of the columns that must be read from a file, by name."""
        return {column.name: column.type for column in self.inputs.columns}

    def check(self, names: list[str] | tuple[str, ...]) -> list[str]:
        """Compare the columns of another table with the inputs.

        Returns:
            Notes about columns that are not used.

        Raises:
            TableError: Columns are missing. The message names all of them.
        """
        missing = [column.name for column in self.inputs.columns if column.name not in names]
        if missing:
            raise TableError(f"the table must have the columns of the training data, it lacks {quoted(missing, 50)}")
        known = {*self.types, *self.inputs.left_out, self.target.name}
        extra = [name for name in names if name not in known]
        notes = [f"columns that are not in the training data are ignored: {quoted(extra)}"] if extra else []
        return notes + [f"the target {self.target.name!r} is there and is not looked at"] * (self.target.name in names)

    def transform(
        self,
        table: pa.Table,
        *,
        rows: Rows | None = None,
        place: Place = row_place,
        findings: Findings | None = None,
    ) -> Floats:
        """Return the standardised matrix, ``(N, len(inputs.features))`` in float32.

        Args:
            table: A table with all columns of ``types``; other columns are ignored.
            rows: Indices of the rows; by default all rows.
            place: Function that returns the place of a row for messages.
            findings: Object to which values are added that did not occur in the training rows.

        Raises:
            TableError: A column of numbers contains text or infinite values.
            NotEnoughMemory: The matrix is too large.
        """
        length, width = len(table) if rows is None else len(rows), len(self.inputs.features)
        require_memory(4.0 * length * width, f"a matrix of {length:,} rows and {width:,} columns", "use fewer columns")
        matrix = np.empty((length, width), dtype=np.float32)
        findings = Findings() if findings is None else findings
        where = place if rows is None else (lambda row: place(int(rows[row])))
        mean, std = np.array(self.mean), np.array(self.std)
        start = 0
        for column in self.inputs.columns:
            values = table.column(column.name)
            own = slice(start, start + len(column.features))
            codes = column.encode(values if rows is None else values.take(rows), where, findings)
            _check_near(column.name, codes[:, 0], mean[start], std[start], where)
            standardized(codes, mean[own], std[own], out=matrix[:, own])
            start = own.stop
        return matrix

    def reading(self, decimal: str) -> Preprocessing:
        """Return a copy for a table in which numbers that are text have another decimal mark."""
        columns = (replace(c, decimal=decimal) if isinstance(c, Number) else c for c in self.inputs.columns)
        return replace(self, inputs=replace(self.inputs, columns=tuple(columns)))

    def notes(self, table: pa.Table | None = None, *, place: Place = row_place, day_first: bool = False) -> list[str]:
        """Return notes for the user about the inputs.

        Args:
            table: The table with all rows, for notes with examples on the interpretation of text.
            place: Function that returns the place of a row.
            day_first: Whether the day comes first, as for :meth:`fit`.
        """
        found = []
        for column in self.inputs.columns:
            if table is not None and isinstance(column, Number):
                found += how_read(column.name, table.column(column.name), place, column.decimal)
            elif table is not None and isinstance(column, Category):
                found += why_category(column.name, table.column(column.name), place)
            elif table is not None and isinstance(column, Date):
                found += how_dated(column, table.column(column.name), place, day_first=day_first)
        return found + [
            f"column {column.name!r}: levels of fewer than {MIN_ROWS} training rows are taken together as 'other'"
            for column in self.inputs.columns
            if isinstance(column, Category) and column.other
        ]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that :meth:`from_json` reads."""
        return {
            "format_version": FORMAT_VERSION,
            "target": self.target.to_json(),
            **self.inputs.to_json(),
            "mean": list(self.mean),
            "std": list(self.std),
            "delimiter": self.delimiter,
            "missing": list(self.missing),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Preprocessing:
        """Create the preprocessing from the dictionary of :meth:`to_json`.

        Raises:
            bayesadam.files.DamagedFile: The dictionary is of another version, or :meth:`to_json` did not return it.
        """
        try:
            if record["format_version"] != FORMAT_VERSION:
                raise ValueError(f"its version is {record['format_version']!r}, not {FORMAT_VERSION}")
            scales = tuple(record["mean"]), tuple(record["std"])
            written = record["delimiter"], tuple(record["missing"])
            return cls(Target.from_json(record["target"]), Inputs.from_json(record), *scales, *written)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise DamagedFile(f"the preprocessing must have been written by bayesadam ({error})") from None

    def save(self, path: Path, *, model: str | None = None) -> None:
        """Write a JSON file, completely or not at all.

        Args:
            path: Path of the file.
            model: Digest of the model to which it belongs.
        """
        write_json(path, {**self.to_json(), "model": model})

    @classmethod
    def load(cls, path: Path, *, model: str | None = None) -> Preprocessing:
        """Read the file that :meth:`save` wrote.

        Args:
            path: Path of the file.
            model: Digest of the model to which it must belong; ``None`` allows any model.

        Raises:
            FileNotFoundError: The file does not exist.
            bayesadam.files.DamagedFile: The file is damaged, has another format, belongs to another model, or is of
                another version.
        """
        rule = "the preprocessing must have been written by bayesadam"
        record, digest = read_json(path, rule)
        with reading(rule, path):
            found = cls.from_json(record)
            _check_scales(found)
            found.target.check()
            if digest is None:
                raise ValueError("it has no digest")
            if model is not None and record["model"] != model:
                raise ValueError("it belongs to another model")
        return found


def _check_scales(found: Preprocessing) -> None:
    """Raise ``ValueError`` unless there is a mean and a standard deviation for every column of the matrix."""
    for text in (found.delimiter or "", *found.missing):
        require_type(text, str)
    for name, least in (("mean", -np.inf), ("std", 0.0)):
        values = np.array(getattr(found, name), dtype=np.float64)
        if values.shape != (len(found.inputs.features),) or not (np.isfinite(values) & (values > least)).all():
            raise ValueError(f"{name} must be a number for each of {len(found.inputs.features)} columns")


def _scales(codes: Codes) -> tuple[NDArray[Any], ...]:
    """Return mean, standard deviation, smallest and largest value of columns of the matrix."""
    return *column_scales(codes), codes.min(0).astype(np.float64), codes.max(0).astype(np.float64)


def _check_near(name: str, values: Codes, mean: float, std: float, place: Place) -> None:
    """Raise ``TableError`` for numbers that are out of the range of single precision after they are standardised."""
    beyond = np.flatnonzero(np.abs(values - mean) > LARGEST * std)
    if len(beyond):
        row = int(beyond[0])
        raise TableError(f"column {name!r} must be near the training values, got {values[row]:g} in {place(row)}")
