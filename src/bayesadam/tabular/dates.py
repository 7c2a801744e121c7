"""Dates and times as columns of a matrix: the time elapsed, and periodic parts (year, week and day)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tabular.errors import Place, TableError, require_type
from bayesadam.tabular.findings import Findings
from bayesadam.tabular.written import MISSING, are_plain

Times = NDArray[np.datetime64]

PARTS = {
    "year": ("time of year, sine", "time of year, cosine"),
    "week": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "day": ("time of day, sine", "time of day, cosine"),
}
_FAR = 0.5
_DAYS_OF_YEAR, _SECONDS_OF_DAY = 365.2425, 86_400.0
_LONG, _WEEKDAYS = 300.0, 8
_NUMBERS = ("year", "month", "day", "hour", "minute", "second")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MINUTE = r":(?P<minute>\d{2})(?::(?P<second>\d{2}(?:\.\d+)?))?"
_ZONE = r" ?(?P<half>(?:[AaPp]\.?[Mm]\.?)?) ?(?P<zone>(?:Z|UTC|[+-]\d{2}(?::?\d{2})?)?)"
_HOUR = r"(?P<hour>\d{1,2})"
_TIME = rf"(?:[ T]+{_HOUR}(?:{_MINUTE})?{_ZONE})?"
_CLOCK = "time of day"
_YEAR, _NAME = r"(?P<year>\d{4}|\d{2})", r"(?P<name>[A-Za-z]{3,9})\.?"
_DATES = {
    "year, month, day": r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})(?:[-/.](?P<day>\d{1,2}))?",
    "month, day, year": rf"(?P<month>\d{{1,2}})[-/.](?P<day>\d{{1,2}})[-/.]{_YEAR}",
    "day, month, year": rf"(?P<day>\d{{1,2}})[-/.](?P<month>\d{{1,2}})[-/.]{_YEAR}",
    "name of the month, day, year": rf"{_NAME}[ -](?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?[ -]+)?(?P<year>\d{{4}})",
    "day, name of the month, year": rf"(?P<day>\d{{1,2}})(?:st|nd|rd|th|\.)?[ -]{_NAME},?[ -]{_YEAR}",
}
_ORDERS = {order: date + _TIME for order, date in _DATES.items()} | {_CLOCK: f"{_HOUR}{_MINUTE}{_ZONE}"}
_FIRST, _AMERICAN, _EUROPEAN = list(_DATES)[:3]


@dataclass(frozen=True)
class Date:
    """A column of dates or times: days since 1970, and the periodic parts that vary in the training rows.

    The time of the year or of the day is represented by a sine and a cosine, so that December is close to January. Each
    day of the week has its own column. Times with a time zone are converted to UTC.

    Attributes:
        name: Name of the column.
        order: Order of the parts of a date that is text, such as "day, month, year"; "time of day" without a date.
        median: Median in days since 1970, which replaces missing values; their periodic parts are 0.
        missing: Whether training rows had missing values. A further column then marks them.
        parts: The periodic parts, from ``PARTS``.
        least: Earliest time in the training rows, in days since 1970.
        largest: Latest time in the training rows, in days since 1970.
    """

    name: str
    order: str
    median: float
    missing: bool
    parts: tuple[str, ...]
    least: float = -math.inf
    largest: float = math.inf

    kind: ClassVar[str] = "date"

    @classmethod
    def fit(cls, column: pa.ChunkedArray, name: str, place: Place, order: str = _FIRST) -> Date:
        """Create the column from the training rows."""
        order = _CLOCK if pa.types.is_time(column.type) else order
        times = as_times(column, name, place, order)
        known = times[~np.isnat(times)]
        days = _days(known)
        least, largest = float(days.min()), float(days.max())
        parts = []
        if largest - least >= _LONG and len(np.unique(known.astype("datetime64[M]").astype(int) % 12)) > 1:
            parts.append("year")
        if len(np.unique(known.astype("datetime64[D]") - known.astype("datetime64[M]"))) >= _WEEKDAYS:
            parts.append("week")
        if (days % 1 > 0).any() and len(np.unique(days % 1)) > 1:
            parts.append("day")
        return cls(name, order, float(np.median(days)), len(known) < len(times), tuple(parts), least, largest)

    def check(self) -> None:
        """Raise ``ValueError`` if an attribute is invalid because a file is damaged."""
        numbers = (self.median, self.least, self.largest)
        if not all(isinstance(value, int | float) for value in numbers) or not math.isfinite(self.median):
            raise ValueError(f"median, least and largest of {self.name!r} must be numbers, got {numbers!r}")
        if self.order not in _ORDERS or not set(self.parts) <= set(PARTS):
            raise ValueError(f"order and parts of {self.name!r} must be known, got {self.order!r} and {self.parts!r}")
        require_type(self.name, str)
        require_type(self.missing, bool)

    @property
    def features(self) -> list[str]:
        """Names of the columns of the matrix."""
        repeated = [f"{self.name}: {feature}" for part in self.parts for feature in PARTS[part]]
        return [self.name, *repeated, *[f"{self.name} is missing"] * self.missing]

    @property
    def type(self) -> pa.DataType:
        """The type as which the values are read from a file."""
        return pa.string()

    def encode(self, column: pa.ChunkedArray, place: Place, findings: Findings) -> NDArray[np.float64]:
        """Return the columns of the matrix, ``(N, len(features))``, before they are standardised."""
        times = as_times(column, self.name, place, self.order)
        absent = np.isnat(times)
        known = np.where(absent, np.datetime64(0, "us"), times)
        days = np.where(absent, np.nan, _days(known))
        room = _FAR * (self.largest - self.least)
        with np.errstate(invalid="ignore"):
            far = (days < self.least - room) | (days > self.largest + room)
        findings.far_in_time(self.name, known, far, (self.least, self.largest), place)
        codes = [np.where(absent, self.median, days)]
        for part in self.parts:
            codes += [np.where(absent, 0.0, values) for values in _part(part, known)]
        if self.missing:
            codes.append(absent.astype(np.float64))
        else:
            findings.missing(self.name, absent)
        return np.stack(codes, axis=1)


def as_times(column: pa.ChunkedArray, name: str, place: Place, order: str = _FIRST) -> Times:
    """Convert a column to ``datetime64[us]``, with NaT for missing values.

    Raises:
        TableError: A value is not a date in this order. The message names the value and its place.
    """
    if pa.types.is_time(column.type):
        column = column.cast(pa.time64("us"), safe=False).cast(pa.int64()).cast(pa.timestamp("us"))
    if pa.types.is_temporal(column.type):
        kind = pa.timestamp("us", "UTC") if getattr(column.type, "tz", None) else pa.timestamp("us")
        values: Times = column.cast(kind, safe=False).to_numpy()
        return values.astype("datetime64[us]")
    text = compute.utf8_trim_whitespace(column.cast(pa.string())).combine_chunks()
    times, odd = _read(text, order)
    if odd.any() and order not in (_FIRST, _CLOCK):
        others, odd_too = _read(text, _FIRST)
        times, odd = np.where(odd, others, times), odd & odd_too
    if odd.any():
        row = int(odd.argmax())
        raise TableError(
            f"column {name!r} must be a date ({order}) in every row, got {text[row].as_py()!r} in {place(row)}"
        )
    return times


def order_of(text: pa.Array, *, day_first: bool = False) -> tuple[str, bool, NDArray[np.bool_]] | None:
    """Return the order in which dates are written, or ``None`` unless most texts are dates or all are times of day.

    Args:
        text: Different values without white space around them.
        day_first: Whether 3/4/2021 is in April, if the column is ambiguous.

    Returns:
        The order, whether day and month could be exchanged, and a mask of the texts that are not dates.
    """
    if are_plain(text):
        return None
    odd = {order: _read(text, order)[1] for order in _ORDERS}
    dotted = bool(compute.match_substring_regex(text, r"^\d+\.\d+\.")[0].as_py())
    first, second = (_EUROPEAN, _AMERICAN) if day_first or dotted else (_AMERICAN, _EUROPEAN)
    orders = sorted(_ORDERS, key=lambda order: (odd[order].sum(), order != first))
    best = orders[0]
    marked = compute.is_in(compute.utf8_lower(text), value_set=pa.array(MISSING)).to_numpy(zero_copy_only=False)
    if 2 * odd[best].sum() >= (~marked).sum() or (best == _CLOCK and odd[best].any()):
        return None
    unsure = best == first and not (dotted or day_first) and bool(odd[second].sum() == odd[best].sum())
    return best, unsure, odd[best]


def _read(text: pa.Array, order: str) -> tuple[Times, NDArray[np.bool_]]:
    """Return times, with NaT for other texts, and a mask of texts that are neither times nor missing values."""
    found = compute.extract_regex(text, f"^{_ORDERS[order]}$")
    known = found.is_valid().to_numpy(zero_copy_only=False)
    number = {name: _whole(found, name, known) for name in _NUMBERS}
    year = _year(found, number["year"], known)
    if "<name>" in _ORDERS[order]:
        names = compute.utf8_lower(compute.utf8_slice_codeunits(compute.struct_field(found, "name"), 0, 3))
        month = compute.fill_null(compute.index_in(names, value_set=pa.array(_MONTHS)), -1).to_numpy() + 1
    else:
        month = np.where(_filled(found, "month", known), number["month"], 1)
    day = np.where(_filled(found, "day", known), number["day"], 1)
    hour, half = number["hour"], _lowered(found, "half")
    hour = np.where(half == "p", hour % 12 + 12, np.where(half == "a", hour % 12, hour))
    possible = known & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (hour < 24) & (number["minute"] < 60)
    months = ((year - 1970) * 12 + np.where(possible, month, 1) - 1).astype("datetime64[M]")
    dates = months.astype("datetime64[D]") + (np.where(possible, day, 1) - 1).astype("timedelta64[D]")
    possible &= dates.astype("datetime64[M]") == months
    seconds = hour * 3600.0 + number["minute"] * 60.0 + number["second"] - _offset(found)
    times = dates.astype("datetime64[us]") + np.round(1e6 * np.where(possible, seconds, 0)).astype("timedelta64[us]")
    marked = compute.is_in(compute.utf8_lower(text), value_set=pa.array(MISSING)).to_numpy(zero_copy_only=False)
    there = text.is_valid().to_numpy(zero_copy_only=False)
    return np.where(possible, times, np.datetime64("NaT", "us")), there & ~possible & ~marked


def _year(found: pa.StructArray, number: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return years with four digits, 1970 for texts without a year; 68 means 2068, and 69 means 1969."""
    number = np.where(_filled(found, "year", known), number, 1970)
    if found.type.get_field_index("year") < 0:
        return number
    digits = compute.fill_null(compute.utf8_length(compute.struct_field(found, "year")), 0)
    return number + np.where(digits.to_numpy(zero_copy_only=False) == 2, np.where(number < 69, 2000, 1900), 0)


def _filled(found: pa.StructArray, name: str, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    if found.type.get_field_index(name) < 0:
        return np.zeros(len(found), dtype=bool)
    text = compute.fill_null(compute.struct_field(found, name), "")
    filled: NDArray[np.bool_] = compute.not_equal(text, "").to_numpy(zero_copy_only=False) & known
    return filled


def _whole(found: pa.StructArray, name: str, known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return a group of digits as numbers, 0 for empty groups."""
    filled = _filled(found, name, known)
    if not filled.any():
        return np.zeros(len(found))
    digits = compute.if_else(pa.array(filled), compute.struct_field(found, name), "0")
    numbers: NDArray[np.float64] = digits.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


def _lowered(found: pa.StructArray, name: str) -> NDArray[np.object_]:
    """Return the first letter of a group in lower case."""
    text = compute.fill_null(compute.struct_field(found, name), "")
    letters: NDArray[np.object_] = compute.utf8_lower(compute.utf8_slice_codeunits(text, 0, 1)).to_numpy(
        zero_copy_only=False
    )
    return letters


def _offset(found: pa.StructArray) -> NDArray[np.float64]:
    """Return the difference of the time zone from UTC in seconds."""
    zone = compute.fill_null(compute.struct_field(found, "zone"), "")
    parts = compute.extract_regex(zone, r"^(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>(?:\d{2})?)$")
    known = parts.is_valid().to_numpy(zero_copy_only=False)
    sign = np.where(_lowered(parts, "sign") == "-", -1.0, 1.0)
    return sign * (3600.0 * _whole(parts, "hours", known) + 60.0 * _whole(parts, "minutes", known))


def _days(times: Times) -> NDArray[np.float64]:
    return times.astype(np.int64) / (1e6 * _SECONDS_OF_DAY)


def _part(part: str, times: Times) -> list[NDArray[np.float64]]:
    days = _days(times)
    if part == "week":
        weekday = (np.floor(days) + 3) % 7  # 1970 began on a Thursday
        return [(weekday == number).astype(np.float64) for number in range(7)]
    if part == "year":
        angle = 2 * np.pi * (days - _days(times.astype("datetime64[Y]").astype("datetime64[us]"))) / _DAYS_OF_YEAR
    else:
        angle = 2 * np.pi * (days % 1)
    return [np.sin(angle), np.cos(angle)]
