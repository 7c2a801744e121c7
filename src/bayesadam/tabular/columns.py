"""Columns of a table as columns of a matrix: the code of each kind, which is learned from training rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tabular.dates import Date
from bayesadam.tabular.errors import Place, TableError, require_type
from bayesadam.tabular.findings import Findings
from bayesadam.tabular.numbers import FEW_TEXTS, as_numbers, as_text
from bayesadam.tabular.written import without_marks

Codes = NDArray[np.float64] | NDArray[np.bool_]

OTHER = "other"
MIN_ROWS = 3
"""Minimum number of training rows for a level of a category; rarer levels are joined as "other"."""
MAX_LEVELS = 100
"""Maximum number of levels of a category."""
_FAR = 0.5
"""Distance from the range of the training rows, relative to its length, beyond which a value is far outside."""
_WHOLE = r"^\+?(-?)0*(\d+)(\.0*)?$"


@dataclass(frozen=True)
class Number:
    """A column of numbers, in double precision, because single precision cannot represent the seconds of a date.

    Attributes:
        name: Name of the column.
        median: Median of the training rows, which replaces missing values.
        missing: Whether training rows had missing values. A second column then marks them.
        least: Smallest value in the training rows. Rows with values far outside the range get predictions and a note.
        largest: Largest value in the training rows.
        decimal: Decimal mark of numbers that are text.
        unit: Unit that such numbers may have, for example "$" or "%".
    """

    name: str
    median: float
    missing: bool
    least: float = -math.inf
    largest: float = math.inf
    decimal: str = "."
    unit: str = ""

    kind: ClassVar[str] = "number"

    @classmethod
    def fit(cls, column: pa.ChunkedArray, name: str, place: Place, decimal: str = ".", unit: str = "") -> Number:
        """Create the column from the training rows."""
        values = as_numbers(column, name, place, decimal, unit)
        known = values[~np.isnan(values)]
        missing = len(known) < len(values)
        return cls(name, float(np.median(known)), missing, float(known.min()), float(known.max()), decimal, unit)

    def check(self) -> None:
        """Raise ``ValueError`` if an attribute is invalid because a file is damaged."""
        numbers = (self.median, self.least, self.largest)
        if not all(isinstance(value, int | float) for value in numbers) or not math.isfinite(self.median):
            raise ValueError(f"median, least and largest of {self.name!r} must be numbers, got {numbers!r}")
        if self.decimal not in (".", ","):
            raise ValueError(f"decimal of {self.name!r} must be '.' or ',', got {self.decimal!r}")
        for text in (self.name, self.unit):
            require_type(text, str)
        require_type(self.missing, bool)

    @property
    def features(self) -> list[str]:
        """Names of the columns of the matrix."""
        return [self.name, f"{self.name} is missing"][: 1 + self.missing]

    @property
    def type(self) -> pa.DataType:
        """The type as which the values are read from a file."""
        return pa.float64()

    def encode(self, column: pa.ChunkedArray, place: Place, findings: Findings) -> Codes:
        """Return the columns of the matrix, ``(N, len(features))``, before they are standardised."""
        values = as_numbers(column, self.name, place, self.decimal, self.unit)
        absent = np.isnan(values)
        room = _FAR * (self.largest - self.least)
        far = (values < self.least - room) | (values > self.largest + room)
        findings.far_outside(self.name, values, far, (self.least, self.largest), place)
        known = np.where(absent, self.median, values)
        if self.missing:
            return np.stack([known, absent], axis=1)
        findings.missing(self.name, absent)
        return known[:, None]


@dataclass(frozen=True)
class Truth:
    """A column of truth values: 1 and 0, and 1/2 for a missing value.

    Attributes:
        name: Name of the column.
        missing: Whether training rows had missing values. A second column then marks them.
    """

    name: str
    missing: bool

    kind: ClassVar[str] = "true or false"

    @classmethod
    def fit(cls, column: pa.ChunkedArray, name: str, place: Place) -> Truth:
        """Create the column from the training rows."""
        return cls(name, column.null_count > 0)

    def check(self) -> None:
        """Raise ``ValueError`` if an attribute is invalid because a file is damaged."""
        require_type(self.name, str)
        require_type(self.missing, bool)

    @property
    def features(self) -> list[str]:
        """Names of the columns of the matrix."""
        return [self.name, f"{self.name} is missing"][: 1 + self.missing]

    @property
    def type(self) -> pa.DataType:
        """The type as which the values are read from a file."""
        return pa.string()

    def encode(self, column: pa.ChunkedArray, place: Place, findings: Findings) -> Codes:
        """Return the columns of the matrix, ``(N, len(features))``, before they are standardised."""
        text = without_marks(compute.utf8_lower(as_text(column)))
        codes = _codes(text, ["false", "true", "0", "1"])
        wrong = np.flatnonzero(codes == -2)
        if len(wrong):
            row = int(wrong[0])
            raise TableError(f"column {self.name!r} must be true or false, got {column[row].as_py()!r} in {place(row)}")
        known = np.where(codes < 0, 0.5, codes % 2)
        if self.missing:
            return np.stack([known, codes == -1], axis=1)
        findings.missing(self.name, codes == -1)
        return known[:, None]


@dataclass(frozen=True)
class Category:
    """A column of text, with one column of the matrix per level, which is 1 for the rows with this level.

    Attributes:
        name: Name of the column.
        levels: Levels of at least ``MIN_ROWS`` training rows, the most frequent first.
        other: Whether training rows had further levels, which share a column with new levels. Otherwise a row with a
            new level has only zeros.
        missing: Whether training rows had missing values. A further column then marks them.
        whole: Whether the levels are whole numbers, so that 005 and 5.0 are the level 5.
    """

    name: str
    levels: tuple[str, ...]
    other: bool
    missing: bool
    whole: bool = False

    kind: ClassVar[str] = "category"

    @classmethod
    def fit(cls, column: pa.ChunkedArray, name: str, place: Place) -> Category:
        """Create the column from the training rows."""
        counts = level_counts(column)
        levels = tuple(level for level, count in counts.items() if count >= MIN_ROWS)
        whole = pa.types.is_integer(column.type)
        return cls(name, levels, len(levels) < len(counts), column.null_count > 0, whole)

    def check(self) -> None:
        """Raise ``ValueError`` if an attribute is invalid because a file is damaged."""
        for text in (self.name, *self.levels):
            require_type(text, str)
        for flag in (self.other, self.missing, self.whole):
            require_type(flag, bool)

    @property
    def features(self) -> list[str]:
        """Names of the columns of the matrix."""
        names = [f"{self.name} = {level}" for level in self.levels]
        return names + [f"{self.name} = {OTHER}"] * self.other + [f"{self.name} is missing"] * self.missing

    @property
    def type(self) -> pa.DataType:
        """The type as which the values are read from a file."""
        return pa.string()

    def encode(self, column: pa.ChunkedArray, place: Place, findings: Findings) -> Codes:
        """Return the columns of the matrix, ``(N, len(features))``, before they are standardised."""
        text = as_text(column)
        if self.whole:
            text = compute.replace_substring_regex(without_marks(text), _WHOLE, r"\1\2")
        codes = _codes(text, self.levels)
        new = codes == -2
        findings.new_levels(self.name, column, new, place)
        found = np.zeros((len(codes), len(self.features)), dtype=bool)
        known = np.flatnonzero(codes >= 0)
        found[known, codes[known]] = True
        if self.other:
            found[new, len(self.levels)] = True
        if self.missing:
            found[codes == -1, -1] = True
        else:
            findings.missing(self.name, codes == -1)
        return found


Column = Number | Truth | Category | Date
_KINDS: dict[str, Callable[..., Column]] = {cls.kind: cls for cls in (Number, Truth, Category, Date)}


def to_json(column: Column) -> dict[str, Any]:
    """Return a dictionary that :func:`from_json` reads."""
    return {"kind": column.kind, **asdict(column)}


def from_json(record: Mapping[str, Any]) -> Column:
    """Create a column from the dictionary of :func:`to_json`; KeyError, TypeError or ValueError if it is invalid."""
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in record.items() if name != "kind"}
    found = _KINDS[record["kind"]](**fields)
    found.check()
    return found


def level_counts(column: pa.ChunkedArray) -> dict[str, int]:
    """Return the number of rows of each level, the most frequent first, then by name, without missing values."""
    counts = compute.value_counts(as_text(column).drop_null())
    pairs = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


def have_few_levels(counts: Mapping[str, int]) -> bool:
    """Whether text is a category: few levels, with several rows each."""
    few = 2 * len(counts) <= sum(counts.values()) and len(counts) <= MAX_LEVELS
    return few and max(counts.values()) >= MIN_ROWS


def odd_texts(rule: str, column: pa.ChunkedArray, odd: pa.Array, place: Place, **otherwise: Any) -> TableError:
    """Return the error for text that does not belong in a column.

    Args:
        rule: The requirement for the column.
        column: The whole column.
        odd: The different texts that do not belong in it. If there are few, the remedy treats them as missing values.
        place: Function that returns the place of a row.
        otherwise: The remedy if there are many.
    """
    texts = odd.to_pylist()
    where = place(compute.index(as_text(column), texts[0]).as_py())
    more = "" if len(texts) == 1 else f" and {len(texts) - 1:,} other text{'s' * (len(texts) > 2)}"
    remedy = {"missing": tuple(texts)} if len(texts) <= FEW_TEXTS else otherwise
    return TableError(f"{rule}, got {texts[0]!r} in {where}{more}", **remedy)


def _codes(text: pa.ChunkedArray, levels: tuple[str, ...] | list[str]) -> NDArray[np.int64]:
    """Return the index of each row's level: -1 for missing values, -2 for other levels."""
    found = compute.index_in(text, value_set=pa.array(levels, pa.string()))
    codes: NDArray[np.int64] = compute.fill_null(found, -2).to_numpy().astype(np.int64)
    codes[compute.is_null(text).to_numpy()] = -1
    return codes
