"""From a table to a matrix, the same for the rows of today and those of tomorrow."""

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
from bayesadam.tabular.columns import MIN_ROWS, Category, Codes, Number, from_json
from bayesadam.tabular.dates import Date
from bayesadam.tabular.describe import how_dated, how_read, why_category
from bayesadam.tabular.errors import Place, TableError, quoted, require_type, row_place
from bayesadam.tabular.findings import Findings
from bayesadam.tabular.inputs import Inputs
from bayesadam.tabular.memory import require_memory
from bayesadam.tabular.split import Rows
from bayesadam.tabular.target import Target

FORMAT_VERSION = 4
"""Since version 3 the file has a digest, and tells that of the model that it belongs to; since 4 columns may be dates,
and numbers text."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Preprocessing:
    """How each column of a table becomes columns of a matrix; learned from training rows, kept as JSON.

    Each column is coded by numbers first; then the matrix is standardised as that of an estimator is, by
    :func:`bayesadam.scaling.input_scales`.

    Attributes:
        target: What is predicted.
        inputs: What each column of the table is taken for, and why some are no inputs.
        mean: What every column of the matrix is shifted by, ``len(inputs.features)`` numbers.
        std: What it is divided by after that, likewise.
        delimiter: Of the CSV file that it was learned from, which further files are taken to have.
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
            table: All rows.
            target: Its column is no input.
            rows: Those to be trained on; default all.
            left_out: Further columns that are no inputs, and why.
            keep: Columns of numbers that are inputs even if they look like numbers of the rows or identifiers.
            place: Where a row of the table is, for messages.
            decimal: The decimal mark of numbers that are text; ``None``: what the columns say.
            day_first: Whether 3/4/2021 is in April, where a column does not tell.

        Raises:
            TableError: Columns hold infinite values or text among numbers, one to be kept cannot be, or none is left;
                all such columns are named.
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
        """The columns to be read from a file, and what their values must be."""
        return {column.name: column.type for column in self.inputs.columns}

    def check(self, names: list[str] | tuple[str, ...]) -> list[str]:
        """Compare the columns of another table.

        Returns:
            Notes about columns that are not used.

        Raises:
            TableError: Columns are missing; all of them are named.
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
        """The matrix, standardised: ``(N, len(inputs.features))`` in float32.

        Args:
            table: With all columns of ``types``; others do not matter.
            rows: Which of its rows; default all.
            place: Where a row of the table is, for messages.
            findings: Gets what training rows had not.

        Raises:
            TableError: Text in a column of numbers, or infinite values.
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
        """The same for a table in which numbers that are text have another decimal mark."""
        columns = (replace(c, decimal=decimal) if isinstance(c, Number) else c for c in self.inputs.columns)
        return replace(self, inputs=replace(self.inputs, columns=tuple(columns)))

    def notes(self, table: pa.Table | None = None, *, place: Place = row_place, day_first: bool = False) -> list[str]:
        """What the user should know about the inputs.

        Args:
            table: All rows: then also what text is taken for, with examples.
            place: Where a row of the table is.
            day_first: As for :meth:`fit`.
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
        """What :meth:`from_json` reads."""
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
        """The preprocessing that was written, exactly.

        Raises:
            bayesadam.files.DamagedFile: It is of a newer version, or was not written by :meth:`to_json`.
        """
        try:
            if record["format_version"] <= FORMAT_VERSION:
                record = _updated(record)
                scales = tuple(record["mean"]), tuple(record["std"])
                written = record.get("delimiter"), tuple(record.get("missing", ()))
                return cls(Target.from_json(record["target"]), Inputs.from_json(record), *scales, *written)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise DamagedFile(f"the preprocessing must have been written by bayesadam ({error})") from None
        raise DamagedFile(
            f"the preprocessing must be of format version {FORMAT_VERSION} or older (update bayesadam), "
            f"got {record['format_version']!r}"
        )

    def save(self, path: Path, *, model: str | None = None) -> None:
        """Write a JSON file, completely or not at all.

        Args:
            path: Of the file.
            model: The digest of the model that it belongs to.
        """
        write_json(path, {**self.to_json(), "model": model})

    @classmethod
    def load(cls, path: Path, *, model: str | None = None) -> Preprocessing:
        """Read what :meth:`save` wrote.

        Args:
            path: Of the file.
            model: The digest of the model that it must belong to; ``None``: any.

        Raises:
            FileNotFoundError: There is none.
            bayesadam.files.DamagedFile: It is damaged, foreign, of another model, or of a newer version.
        """
        rule = "the preprocessing must have been written by bayesadam"
        record, digest = read_json(path, rule)
        with reading(rule, path):
            found = cls.from_json(record)
            _check_scales(found)
            found.target.check()
            if record["format_version"] > 2 and digest is None:
                raise ValueError("it has no digest")
            if model is not None and record["model"] != model:
                raise ValueError("it belongs to another model")
        return found


def _check_scales(found: Preprocessing) -> None:
    """Raise ``ValueError`` unless every column of the matrix is shifted and divided by numbers, and texts are texts."""
    for text in (found.delimiter or "", *found.missing):
        require_type(text, str)
    for name, least in (("mean", -np.inf), ("std", 0.0)):
        values = np.array(getattr(found, name), dtype=np.float64)
        if values.shape != (len(found.inputs.features),) or not (np.isfinite(values) & (values > least)).all():
            raise ValueError(f"{name} must be a number for each of {len(found.inputs.features)} columns")


def _scales(codes: Codes) -> tuple[NDArray[Any], ...]:
    """Mean, deviation, least and largest value of columns of the matrix, each of ``len(inputs.features)``."""
    return *column_scales(codes), codes.min(0).astype(np.float64), codes.max(0).astype(np.float64)


def _check_near(name: str, values: Codes, mean: float, std: float, place: Place) -> None:
    """Raise ``TableError`` for numbers that single precision does not have once they are standardised."""
    beyond = np.flatnonzero(np.abs(values - mean) > LARGEST * std)
    if len(beyond):
        row = int(beyond[0])
        raise TableError(f"column {name!r} must be near what it was in training, got {values[row]:g} in {place(row)}")


def _updated(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record as this version writes it: in version 1 columns of numbers alone were scaled, each by its own."""
    if record["format_version"] > 1:
        return record
    columns: list[dict[str, Any]] = []
    mean: list[float] = []
    std: list[float] = []
    for old in record["columns"]:
        column = dict(old)
        shift, scale = 0.0, 1.0
        if "center" in column:
            shift, scale = column["center"], column.pop("scale")
            column["median"] = column.pop("center")
        more = len(from_json(column).features) - 1
        columns.append(column)
        mean += [shift] + [0.0] * more
        std += [scale] + [1.0] * more
    return {**record, "columns": columns, "mean": mean, "std": std}
