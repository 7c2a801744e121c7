"""Numbers as people write them: with currencies, units, thousands separators, and marks of missing values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from bayesadam.scaling import LARGEST

MISSING: tuple[str, ...] = ("", "?", "-", "--", "\u2013", "\u2014", ".", "..", "*", "na", "n/a", "n.a.", "#n/a", "null")
MISSING += ("none", "nan", "missing", "unknown", "#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!")
MISSING += ("#na", "#n/a n/a", "-nan", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan")
"""In a column of numbers, dates or truth values these texts mean that the value is missing, in lower or upper case."""

NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
"""A regular expression for numbers as programs write them."""

EXACT = 2**53
"""Largest number up to which all whole numbers are exact in float64."""

_LOOKED_AT = 1_000
_SPACES, _MINUS = "[\u00a0\u2007\u2009\u202f]", "\u2212"
_CODES = "USD|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|BRL|MXN|ZAR|KRW|RUB|TRY|ILS|SGD|HKD"
_MONEY = rf"(?:[A-Z]{{0,2}}[$\x{{A2}}-\x{{A5}}\x{{20A0}}-\x{{20CF}}]|{_CODES})"
_LETTER = r"[A-Za-z/%\x{B0}\x{B2}\x{B3}\x{B5}\x{C0}-\x{1FFF}\x{2100}-\x{D7FF}]"  # \p{L} takes long to compile
_THOUSANDS = {".": (",", " ", "'", "\u2019"), ",": (r"\.", " ", "'", "\u2019")}
_GROUPS = ("open", "sign", "before", "inner", "body", "exponent", "after", "last")


@dataclass(frozen=True)
class CsvNumbers:
    """The numbers in a column of texts.

    Attributes:
        values: The numbers in float64; nan for other texts.
        odd: Mask of texts that are neither numbers nor marks of missing values.
        marked: Mask of marks of missing values.
        units: Unit before or after each number, such as "$", "%" or "kg"; "" for numbers without a unit.
    """

    values: NDArray[np.float64]
    odd: NDArray[np.bool_]
    marked: NDArray[np.bool_]
    units: NDArray[np.object_]

    @property
    def unit(self) -> str | None:
        """The unit of all numbers; ``None`` if there are several, or if some numbers lack one.

        A currency and a percent sign may be missing in some rows.
        """
        present = set(self.units[~np.isnan(self.values)].tolist())
        several = present - {""}
        if len(several) > 1:
            return None
        unit = next(iter(several), "")
        optional = unit in ("", "%") or compute.match_substring_regex(pa.scalar(unit), f"^{_MONEY}$").as_py()
        return unit if optional or "" not in present else None


def read_numbers(text: pa.Array | pa.ChunkedArray, decimal: str = ".") -> CsvNumbers:
    """Read numbers from texts.

    Args:
        text: Texts without white space around them. Missing values are neither odd nor marked.
        decimal: Decimal mark, "." or ",".
    """
    array = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
    present = flags(array.is_valid())
    plain = compute.replace_substring(compute.replace_substring_regex(array, _SPACES, " "), _MINUS, "-")
    marked = means_missing(plain)
    parts = compute.extract_regex(plain, _pattern(decimal))
    group = {name: compute.fill_null(compute.struct_field(parts, name), "") for name in _GROUPS}
    number = flags(parts.is_valid()) & ~marked
    digits = compute.replace_substring_regex(group["body"], r"[ '\x{2019}]", "")
    digits = compute.replace_substring(digits, "," if decimal == "." else ".", "")
    digits = compute.binary_join_element_wise(compute.replace_substring(digits, decimal, "."), group["exponent"], "")
    digits = compute.if_else(pa.array(number), digits, None)
    values = digits.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
    signs = compute.binary_join_element_wise(group["sign"], group["inner"], group["open"], group["last"], "")
    values = np.where(flags(compute.match_substring_regex(signs, r"[-(]")), -values, values)
    number &= np.abs(np.nan_to_num(values)) <= LARGEST
    units = compute.binary_join_element_wise(group["before"], group["after"], "").to_numpy(zero_copy_only=False)
    return CsvNumbers(np.where(number, values, np.nan), present & ~(number | marked), marked, units)


def numbers_in(column: pa.ChunkedArray, decimal: str = ".", unit: str | None = None) -> NDArray[np.float64]:
    """Convert a column to float64, with nan for missing values and for values that are not finite numbers.

    Args:
        column: Numbers, truth values, durations (converted to seconds), or text with numbers.
        decimal: Decimal mark of text, "." or ",".
        unit: Unit that numbers in text may have, for example "$"; ``None`` allows any unit.
    """
    if is_text(column.type):
        text = as_text(column)
        if decimal == "." and are_plain(text):  # most columns have only numbers as programs write them
            values = text.cast(pa.float64()).to_numpy()
        else:
            read = read_numbers(text, decimal)
            values = read.values
            if unit is not None:
                values = np.where(np.isin(read.units.astype(str), ("", unit)), values, np.nan)
    elif pa.types.is_duration(column.type):
        values = column.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.float64()).to_numpy() / 1e6
    elif is_number(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        values = column.cast(pa.float64(), safe=False).to_numpy()
    else:
        values = np.full(len(column), np.nan)
    return np.where(np.abs(values) <= LARGEST, values, np.nan)


def beyond_exact(column: pa.ChunkedArray, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of whole numbers that are not exact in float64, so that different ones may be equal.

    Args:
        column: The column.
        values: Its numbers, from :func:`numbers_in`.
    """
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_decimal(kind) or is_text(kind)):
        return np.zeros(len(values), dtype=bool)
    large = np.abs(values) > EXACT
    if is_text(kind) and large.any():
        large &= flags(compute.match_substring_regex(as_text(column), r"^[+-]?\d+$"))
    return large


def decimal_of(text: pa.Array) -> str | None:
    """Return the decimal mark with which more of the texts are numbers; ``None`` if both are equal or few are numbers.

    Only the first thousand texts are examined.
    """
    text = text[:_LOOKED_AT]
    readable = {mark: int((~read_numbers(text, mark).odd).sum()) for mark in (".", ",")}
    best = max(readable, key=lambda mark: readable[mark])
    if readable["."] == readable[","] or readable[best] < 0.9 * len(text):
        return None
    return best


def decimals_of(table: pa.Table, given: str | None = None) -> dict[str, str]:
    """Return the decimal mark of each column: where its cells do not tell, a comma if another column has commas."""
    if given is not None:
        return dict.fromkeys(table.column_names, given)
    marks = {
        name: decimal_of(levels_of(column)) if is_text(column.type) else "." * pa.types.is_floating(column.type)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return {name: mark or ("," if "," in marks.values() else ".") for name, mark in marks.items()}


def means_missing(text: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return a mask of texts such as "NA" that mean a missing value."""
    return flags(compute.is_in(compute.utf8_lower(text), value_set=pa.array(MISSING))) & flags(text.is_valid())


def are_plain(text: pa.Array | pa.ChunkedArray) -> bool:
    """Whether all texts are numbers as programs write them, and none has a leading zero, as codes have."""
    plain = compute.all(compute.match_substring_regex(text, f"^({NUMBER})$")).as_py() is not False
    return plain and not are_codes(text)


def are_codes(text: pa.Array | pa.ChunkedArray) -> bool:
    """Whether all texts are digits, some with a leading zero: postal codes, for which 02134 is not 2134."""
    if not compute.any(compute.match_substring_regex(text, r"^0\d+$")).as_py():
        return False
    return bool(compute.all(compute.match_substring_regex(text, r"^\d+$")).as_py())


def as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to text without white space around it; truth values become "true" and "false"."""
    return compute.utf8_trim_whitespace(column.cast(pa.string()))


def levels_of(column: pa.ChunkedArray) -> pa.Array:
    """Return the different texts of a column, in the order of their first rows."""
    return as_text(column).unique().drop_null()


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is text, or categories of text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view")


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is integers, floats, decimals, or categories of numbers."""
    if pa.types.is_dictionary(kind):
        return is_number(kind.value_type)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def flags(values: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return truth values as a NumPy array, with ``False`` for missing values."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    mask: NDArray[np.bool_] = compute.fill_null(values, False).to_numpy(zero_copy_only=False)
    return mask


def _pattern(decimal: str) -> str:
    mark = r"\." if decimal == "." else ","
    grouped = [rf"[1-9]\d{{0,2}}(?:{separator}\d{{3}})+" for separator in _THOUSANDS[decimal]]
    lakhs = rf"[1-9]\d?(?:{_THOUSANDS[decimal][0]}\d{{2}})+{_THOUSANDS[decimal][0]}\d{{3}}"  # 1,20,000 in India
    body = rf"(?:{'|'.join(grouped)}|{lakhs}|\d+)(?:{mark}\d*)?|{mark}\d+"
    after = rf"{_MONEY}|{_LETTER}{{1,12}}|{_LETTER}{{0,10}}m[23]"
    number = rf"(?P<body>{body})(?P<exponent>(?:[eE][+-]?\d+)?)"
    head = rf"(?P<open>\(?)(?P<sign>[+-]?) ?(?P<before>(?:{_MONEY})?) ?(?P<inner>[+-]?)"
    return rf"^{head}{number} ?(?P<after>(?:{after})?)(?P<last>-?)\)?$"
