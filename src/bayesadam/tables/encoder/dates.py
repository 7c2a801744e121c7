"""Dates and times as columns of a matrix: the time elapsed, and periodic parts (year, week and day)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.tables.encoder.csv_numbers import (
    NUMBER,
    are_codes,
    as_text,
    flags,
    is_text,
    levels_of,
    means_missing,
)
from bayesadam.tables.encoder.findings import Findings

Floats = NDArray[np.float64]
Times = NDArray[np.datetime64]

PARTS = {
    "year": ("time of year, sine", "time of year, cosine"),
    "week": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "day": ("time of day, sine", "time of day, cosine"),
}
_WORDS = {"year": "season", "week": "day of the week", "day": "time of day"}
_DAYS_OF_YEAR, _SECONDS_OF_DAY = 365.2425, 86_400.0
_LONG, _WEEKDAYS = 300.0, 8
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MINUTE = r":(?P<minute>\d{2})(?::(?P<second>\d{2}(?:\.\d+)?))?"
_OFFSET = r"(?:Z|UTC|(?P<east>[+-])(?P<zone_hour>\d{2})(?::?(?P<zone_minute>\d{2}))?)?"
_ZONE = rf" ?(?P<half>(?:[AaPp]\.?[Mm]\.?)?) ?{_OFFSET}"
_HOUR = r"(?P<hour>\d{1,2})"
_TIME = rf"(?:[ T]+{_HOUR}(?:{_MINUTE})?{_ZONE})?"
_YEAR, _NAME = r"(?P<year>\d{4}|\d{2})", r"(?P<name>[A-Za-z]{3,9})\.?"
_DATES = {
    "year, month, day": r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})(?:[-/.](?P<day>\d{1,2}))?",
    "month, day, year": rf"(?P<month>\d{{1,2}})[-/.](?P<day>\d{{1,2}})[-/.]{_YEAR}",
    "day, month, year": rf"(?P<day>\d{{1,2}})[-/.](?P<month>\d{{1,2}})[-/.]{_YEAR}",
    "name of the month, day, year": rf"{_NAME}[ -](?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?[ -]+)?(?P<year>\d{{4}})",
    "day, name of the month, year": rf"(?P<day>\d{{1,2}})(?:st|nd|rd|th|\.)?[ -]{_NAME},?[ -]{_YEAR}",
}
_CLOCK, _COMPACT = "time of day", "year, month, day without marks"
_ORDERS = {order: date + _TIME for order, date in _DATES.items()} | {_CLOCK: f"{_HOUR}{_MINUTE}{_ZONE}"}
_DIGITS = {_COMPACT: r"(?P<year>\d{4})(?:(?P<month>\d{2})(?P<day>\d{2})?)?(?:\.0*)?"}
"""Orders of numbers such as 20210304 or 20210304.0, which are dates only if the user says so."""
FIRST, _AMERICAN, _EUROPEAN = list(_DATES)[:3]
_SAME_STEP = 0.1
"""Largest relative difference between regular steps: those of months and quarters differ by less."""
_FARTHEST = 1e15
"""Largest number of days since 1970 of a date."""


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

    Raises:
        ValueError: A time is too far for NumPy's dates.
    """

    name: str
    order: str
    median: float
    missing: bool
    parts: tuple[str, ...]
    least: float = -math.inf
    largest: float = math.inf

    kind: ClassVar[str] = "date"

    def __post_init__(self) -> None:
        for days in (self.median, self.least, self.largest):
            if _FARTHEST < abs(days) < math.inf:
                raise ValueError(f"days must be at most {_FARTHEST:g}, got {days!r}")

    @classmethod
    def fit(cls, column: pa.ChunkedArray, name: str, order: str = FIRST) -> Date:
        """Create the column from the training rows."""
        order = _CLOCK if pa.types.is_time(column.type) else order
        times = as_times(column, order)
        dates = times[~np.isnat(times)]
        days = _days(dates)
        least, largest = float(days.min()), float(days.max())
        parts = []
        if largest - least >= _LONG and len(np.unique(dates.astype("datetime64[M]").astype(int) % 12)) > 1:
            parts.append("year")
        if len(np.unique(dates.astype("datetime64[D]") - dates.astype("datetime64[M]"))) >= _WEEKDAYS:
            parts.append("week")
        if (days % 1 > 0).any() and len(np.unique(days % 1)) > 1:
            parts.append("day")
        return cls(name, order, float(np.median(days)), len(dates) < len(times), tuple(parts), least, largest)

    @property
    def repeated(self) -> str:
        """The periodic parts in words."""
        return " and ".join(_WORDS[part] for part in self.parts)

    @property
    def features(self) -> list[str]:
        """Names of the columns of the matrix."""
        repeated = [f"{self.name}: {feature}" for part in self.parts for feature in PARTS[part]]
        return [self.name, *repeated, *[f"{self.name} is missing"] * self.missing]

    def encode(self, column: pa.ChunkedArray, findings: Findings) -> Floats:
        """Return the columns of the matrix, ``(N, len(features))``, before they are standardised."""
        times = as_times(column, self.order)
        absent = np.isnat(times)
        findings.unreadable(self.name, column, absent & are_cells(column), f"dates ({self.order})")
        filled = np.where(absent, np.datetime64(0, "us"), times)
        days = np.where(absent, np.nan, _days(filled))
        ends = self.least, self.largest
        findings.outside(self.name, days, ends, lambda day: str(np.datetime64(math.floor(day), "D")))
        codes = [np.where(absent, self.median, days)]
        for part in self.parts:
            codes += [np.where(absent, 0.0, values) for values in _part(part, filled)]
        return findings.with_missing(self.name, np.stack(codes, axis=1), absent, expected=self.missing)


def are_cells(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return a mask of the cells that hold something, which no mark of a missing value does."""
    there = flags(column.is_valid())
    return there & ~means_missing(as_text(column)) if is_text(column.type) else there


def as_times(column: pa.ChunkedArray, order: str = FIRST) -> Times:
    """Convert a column to ``datetime64[us]``, with NaT for missing values and for text that is no date."""
    if pa.types.is_time(column.type):
        column = column.cast(pa.time64("us"), safe=False).cast(pa.int64()).cast(pa.timestamp("us"))
    if pa.types.is_temporal(column.type):
        kind = pa.timestamp("us", "UTC") if getattr(column.type, "tz", None) else pa.timestamp("us")
        values: Times = column.cast(kind, safe=False).to_numpy()
        return values.astype("datetime64[us]")
    text = as_text(column).combine_chunks()
    times = _read(text, order)
    if order not in (FIRST, _CLOCK):
        times = np.where(np.isnat(times), _read(text, FIRST), times)
    return times


def date_of(column: pa.ChunkedArray, name: str, *, day_first: bool = False, wanted: bool = False) -> Date | None:
    """Create the column from its values if they are dates; otherwise return ``None``, as for :func:`order_of`."""
    if pa.types.is_temporal(column.type):
        return Date.fit(column, name)
    found = order_of(levels_of(column), day_first=day_first, wanted=wanted) if wanted or is_text(column.type) else None
    return Date.fit(column, name, found[0]) if found else None


def are_steps(times: Times) -> bool:
    """Whether times increase, or decrease, from row to row, mostly in steps of about the same length."""
    steps = np.diff(_days(times)) if not np.isnat(times).any() else np.zeros(1)
    usual = np.median(steps) if len(steps) else 0.0
    regular = np.abs(steps - usual) <= _SAME_STEP * abs(usual)
    return bool(usual and (steps * usual > 0).all() and 2 * regular.sum() >= len(steps))


def order_of(text: pa.Array, *, day_first: bool = False, wanted: bool = False) -> tuple[str, bool] | None:
    """Return the order in which dates are written, or ``None`` unless most texts are dates or all are times of day.

    Args:
        text: Different values without white space around them.
        day_first: Whether 3/4/2021 is in April, if the column is ambiguous.
        wanted: Whether the user says that the texts are dates, so that numbers such as 20210304 are dates, too.

    Returns:
        The order, and whether day and month could be exchanged.
    """
    text = text.filter(pa.array(~means_missing(text)))
    numbers = flags(compute.match_substring_regex(text, f"^({NUMBER})$"))
    if not wanted and (2 * numbers.sum() >= len(text) or are_codes(text)):  # 1013.2 is not a month of the year 1013
        return None
    candidates = [*_ORDERS, *_DIGITS] if wanted else list(_ORDERS)
    odd = {order: int(np.isnat(_read(text, order)).sum()) for order in candidates}
    dotted = bool(len(text)) and compute.match_substring_regex(text, r"^\d+\.\d+\.")[0].as_py()
    first, second = (_EUROPEAN, _AMERICAN) if day_first or dotted else (_AMERICAN, _EUROPEAN)
    best = min(candidates, key=lambda order: (odd[order], order != first))
    if 2 * odd[best] >= len(text) or (best == _CLOCK and odd[best]):
        return None
    return best, best == first and not (dotted or day_first) and odd[second] == odd[best]


def _read(text: pa.Array, order: str) -> Times:
    """Return times, with NaT for other texts."""
    groups = compute.extract_regex(text, f"^{(_ORDERS | _DIGITS)[order]}$")
    names = {field.name for field in groups.type}

    def texts(name: str) -> pa.Array:
        return (
            compute.fill_null(compute.struct_field(groups, name), "") if name in names else pa.array([""] * len(text))
        )

    def number(name: str, default: float = 0.0) -> Floats:
        digits = texts(name)
        values: Floats = compute.if_else(compute.equal(digits, ""), str(default), digits).cast(pa.float64()).to_numpy()
        return values

    year = number("year", 1970)
    short = compute.equal(compute.utf8_length(texts("year")), 2).to_numpy(zero_copy_only=False)
    year = year + np.where(short, np.where(year < 69, 2000, 1900), 0)  # 68 means 2068, and 69 means 1969
    month = number("month", 1)
    if "name" in names:
        short_names = compute.utf8_lower(compute.utf8_slice_codeunits(texts("name"), 0, 3))
        month = compute.fill_null(compute.index_in(short_names, value_set=pa.array(_MONTHS)), -1).to_numpy() + 1
    day, hour, minute = number("day", 1), number("hour"), number("minute")
    half = compute.utf8_lower(compute.utf8_slice_codeunits(texts("half"), 0, 1)).to_numpy(zero_copy_only=False)
    hour = np.where(half == "p", hour % 12 + 12, np.where(half == "a", hour % 12, hour))
    possible = flags(groups.is_valid()) & (month >= 1) & (month <= 12) & (day >= 1) & (hour < 24) & (minute < 60)
    months = ((year - 1970) * 12 + np.where(possible, month, 1) - 1).astype("datetime64[M]")
    dates = months.astype("datetime64[D]") + (np.where(possible, day, 1) - 1).astype("timedelta64[D]")
    possible &= dates.astype("datetime64[M]") == months
    west = texts("east").to_numpy(zero_copy_only=False) == "-"
    offset = np.where(west, -1, 1) * (number("zone_hour") * 60 + number("zone_minute"))
    seconds = np.where(possible, 60.0 * (60.0 * hour + minute - offset) + number("second"), 0.0)
    times = dates.astype("datetime64[us]") + np.round(1e6 * seconds).astype("timedelta64[us]")
    return np.where(possible, times, np.datetime64("NaT", "us"))


def _days(times: Times) -> Floats:
    return times.astype(np.int64) / (1e6 * _SECONDS_OF_DAY)


def _part(part: str, times: Times) -> list[Floats]:
    days = _days(times)
    if part == "week":
        weekday = (np.floor(days) + 3) % 7  # 1970 began on a Thursday
        return [(weekday == number).astype(np.float64) for number in range(7)]
    if part == "year":
        angle = 2 * np.pi * (days - _days(times.astype("datetime64[Y]").astype("datetime64[us]"))) / _DAYS_OF_YEAR
    else:
        angle = 2 * np.pi * (days % 1)
    return [np.sin(angle), np.cos(angle)]
