"""The types of columns: how each becomes columns of a matrix, which is learned from training rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.checks import is_of
from bayesadam.tables.encoder.csv_numbers import (
    NUMBER,
    are_codes,
    as_text,
    beyond_exact,
    flags,
    is_text,
    means_missing,
    numbers_in,
)
from bayesadam.tables.encoder.dates import Date, are_cells
from bayesadam.tables.encoder.findings import Findings

Codes = NDArray[np.float64] | NDArray[np.bool_]

OTHER = "other"
MIN_ROWS = 3
"""Minimum number of training rows for a level of a category; rarer levels are joined as "other"."""
MAX_LEVELS = 100
"""Maximum number of levels of a category."""
NGRAMS, COMPONENTS = 1_000, 30
"""Maximum number of letter sequences that are counted in text, and of columns that they are reduced to."""
TEXT_ROWS = 20_000
"""Maximum number of training rows from which the weights of letter sequences are learned."""
_PLAIN = r"^\+?(-?)0*(\d+)(?:\.0*|(\.\d*[1-9])0*)?$"
"""A regular expression for numbers without an exponent: sign, whole part and decimals, without zeros around them."""


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
    def fit(cls, column: pa.ChunkedArray, name: str, decimal: str = ".", unit: str = "") -> Number:
        """Create the column from the training rows."""
        values = numbers_in(column, decimal, unit)
        numbers = values[~np.isnan(values)]
        missing = len(numbers) < len(values)
        return cls(name, float(np.median(numbers)), missing, float(numbers.min()), float(numbers.max()), decimal, unit)

    @property
    def features(self) -> list[str]:
        """Names of the columns of the matrix."""
        return [self.name, f"{self.name} is missing"][: 1 + self.missing]

    def encode(self, column: pa.ChunkedArray, findings: Findings) -> Codes:
        """Return the columns of the matrix, ``(N, len(features))``, before they are standardised."""
        values = numbers_in(column, self.decimal, self.unit)
        absent = np.isnan(values)
        if absent.any():
            rule = (f"numbers in {self.unit!r}" if self.unit else "finite numbers") + ", with a decimal comma" * (
                self.decimal == ","
            )
            findings.unreadable(self.name, column, absent & are_cells(column), rule)
        findings.inexact(self.name, column, beyond_exact(column, values))
        findings.outside(self.name, values, (self.least, self.largest))
        filled = np.where(absent, self.median, values)[:, None]
        return findings.with_missing(self.name, filled, absent, expected=self.missing)


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

    @property
    def features(self) -> list[str]:
        """Names of the columns of the matrix."""
        return [self.name, f"{self.name} is missing"][: 1 + self.missing]

    def encode(self, column: pa.ChunkedArray, findings: Findings) -> Codes:
        """Return the columns of the matrix, ``(N, len(features))``, before they are standardised."""
        codes = _codes(column, ("false", "true", "0", "1"))
        absent = codes < 0
        findings.unreadable(self.name, column, absent & are_cells(column), "true or false")
        filled = np.where(absent, 0.5, codes % 2)[:, None]
        return findings.with_missing(self.name, filled, absent, expected=self.missing)


@dataclass(frozen=True)
class Category:
    """A column of text, with one column of the matrix per level, which is 1 for the rows with this level.

    A level that is a number or a truth value may be written otherwise in new rows: 5.0 is the level 5, True is true.

    Attributes:
        name: Name of the column.
        levels: Levels of at least ``MIN_ROWS`` training rows, the most frequent first.
        other: Whether training rows had further levels, which share a column with new levels. Otherwise a row with a
            new level has only zeros.
        missing: Whether training rows had missing values. A further column then marks them.
    """

    name: str
    levels: tuple[str, ...]
    other: bool
    missing: bool

    kind: ClassVar[str] = "category"

    @classmethod
    def fit(cls, column: pa.ChunkedArray, name: str) -> Category:
        """Create the column from the training rows."""
        counts = level_counts(column)
        levels = tuple(level for level, count in counts.items() if count >= MIN_ROWS)[:MAX_LEVELS]
        return cls(name, levels, len(levels) < len(counts), column.null_count > 0)

    @property
    def features(self) -> list[str]:
        """Names of the columns of the matrix."""
        names = [f"{self.name} = {level}" for level in self.levels]
        return names + [f"{self.name} = {OTHER}"] * self.other + [f"{self.name} is missing"] * self.missing

    def encode(self, column: pa.ChunkedArray, findings: Findings) -> Codes:
        """Return the columns of the matrix, ``(N, len(features))``, before they are standardised."""
        codes = _codes(column, self.levels)
        new = codes == -2
        findings.new_levels(self.name, column, new)
        matrix = np.zeros((len(codes), len(self.features)), dtype=bool)
        rows = np.flatnonzero(codes >= 0)
        matrix[rows, codes[rows]] = True
        if self.other:
            matrix[new, len(self.levels)] = True
        if self.missing:
            matrix[codes == -1, -1] = True
        else:
            findings.missing(self.name, codes == -1)
        return matrix


@dataclass(frozen=True)
class Text:
    """A column of text with many values: frequencies of letter sequences, in their directions of largest variance.

    The frequencies are weighted by rarity (tf-idf), so that similar texts, such as "St. Louis" and "Saint Louis", get
    similar numbers, new texts as well.

    Attributes:
        name: Name of the column.
        ngrams: Sequences of three and four letters.
        rarity: Weight of each of them.
        directions: A row of weights for each column of the matrix, ``(K, len(ngrams))``.
    """

    name: str
    ngrams: tuple[str, ...]
    rarity: tuple[float, ...]
    directions: tuple[tuple[float, ...], ...]

    kind: ClassVar[str] = "text"

    @classmethod
    def fit(cls, column: pa.ChunkedArray, name: str) -> Text | None:
        """Create the column from the training rows; ``None`` if the texts have no letters."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), max_features=NGRAMS)
        try:
            rows = np.linspace(0, len(column) - 1, min(len(column), TEXT_ROWS)).astype(np.int64)
            frequencies = vectorizer.fit_transform([text or "" for text in as_text(column.take(rows)).to_pylist()])
        except ValueError:  # an empty vocabulary
            return None
        width = min(COMPONENTS, min(frequencies.shape) - 1)
        if width < 1:
            return None
        directions = TruncatedSVD(width, random_state=0).fit(frequencies).components_
        ngrams = vectorizer.get_feature_names_out().tolist()
        return cls(name, tuple(ngrams), _digits(vectorizer.idf_), tuple(_digits(row) for row in directions))

    @property
    def features(self) -> list[str]:
        """Names of the columns of the matrix."""
        return [f"{self.name}: text {number + 1}" for number in range(len(self.directions))]

    def encode(self, column: pa.ChunkedArray, findings: Findings) -> Codes:
        """Return the columns of the matrix, ``(N, len(features))``, before they are standardised."""
        vectorizer, directions = self._arrays
        encoded = as_text(column).combine_chunks().dictionary_encode(null_encoding="encode")
        distinct = vectorizer.transform([text or "" for text in encoded.dictionary.to_pylist()]) @ directions
        return np.asarray(distinct[encoded.indices.to_numpy(zero_copy_only=False)])

    @cached_property
    def _arrays(self) -> tuple[Any, NDArray[np.float64]]:
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), vocabulary=self.ngrams)
        vectorizer.idf_ = np.array(self.rarity)
        return vectorizer, np.array(self.directions).T


Column = Number | Truth | Category | Text | Date
_KINDS: dict[str, Any] = {cls.kind: cls for cls in (Number, Truth, Category, Text, Date)}


def to_json(column: Column) -> dict[str, Any]:
    """Return a dictionary that :func:`from_json` reads."""
    return {"kind": column.kind, **asdict(column)}


def from_json(record: Mapping[str, Any]) -> Column:
    """Create a column from the dictionary of :func:`to_json`; KeyError, TypeError or ValueError if it is invalid."""
    kind = _KINDS[record["kind"]]
    fields = {name: _tuples(value) for name, value in record.items() if name != "kind"}
    hints = get_type_hints(kind)
    for name, value in fields.items():
        if not is_of(value, hints[name]):
            raise ValueError(f"{name} of a column must be {hints[name]}, got {value!r:.100}")
    column: Column = kind(**fields)
    return column


def level_counts(column: pa.ChunkedArray) -> dict[str, int]:
    """Return the number of rows of each level, the most frequent first, then by name, without missing values."""
    counts = compute.value_counts(as_text(column).drop_null())
    pairs = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


def have_few_levels(counts: Mapping[str, int]) -> bool:
    """Whether text is a category: few levels, with several rows each."""
    few = 2 * len(counts) <= sum(counts.values()) and len(counts) <= MAX_LEVELS
    return few and max(counts.values()) >= MIN_ROWS


def _codes(column: pa.ChunkedArray, levels: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the index of each row's level: -1 for missing values, -2 for other levels.

    What is not a level as it is written may be one that is written otherwise: a file has "1.0" or "True" where the
    training rows had the number 1 or the truth value.
    """
    encoded = as_text(column).combine_chunks().dictionary_encode(null_encoding="encode")
    texts, names = encoded.dictionary, pa.array(levels, pa.string())
    same = compute.index_in(texts, value_set=names)
    alike = (
        same if is_text(column.type) and are_codes(names) else compute.index_in(_alike(texts), value_set=_alike(names))
    )
    codes: NDArray[np.int64] = compute.fill_null(compute.coalesce(same, alike), -2).to_numpy().astype(np.int64)
    codes[~flags(texts.is_valid())] = -1
    if compute.all(compute.match_substring_regex(names, f"^(true|false|{NUMBER})$")).as_py():
        codes[(codes == -2) & means_missing(texts)] = -1
    return np.asarray(codes[encoded.indices.to_numpy()])


def _alike(text: pa.Array) -> pa.Array:
    """Return texts with one way to write a number or a truth value: 5.0 and 05 become 5, and True becomes true."""
    lower = compute.utf8_lower(text)
    numbers = compute.replace_substring_regex(text, _PLAIN, r"\1\2\3")
    return compute.if_else(compute.is_in(lower, pa.array(["true", "false"])), lower, numbers)


def _digits(values: NDArray[Any]) -> tuple[float, ...]:
    """Round to six digits, since these numbers fill a file."""
    return tuple(float(f"{value:.6g}") for value in values.tolist())


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
