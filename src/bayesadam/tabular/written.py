"""Reading of numbers with currencies, units, thousands separators, and marks of missing values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

MISSING: tuple[str, ...] = ("", "?", "-", "--", "\u2013", "\u2014", ".", "..", "*", "na", "n/a", "n.a.", "#n/a", "null")
MISSING += ("none", "nan", "missing", "unknown", "#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!")
MISSING += ("#na", "#n/a n/a", "-nan", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan")
"""In a column of numbers, dates or truth values these texts mean that the value is missing, in lower or upper case."""

NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(?i:inf|infinity|nan)"
"""A regular expression for numbers as programs write them."""

_LOOKED_AT = 1_000
_SPACES, _MINUS = "[\u00a0\u2007\u2009\u202f]", "\u2212"
_CODES = "USD|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|BRL|MXN|ZAR|KRW|RUB|TRY|ILS|SGD|HKD"
_MONEY = rf"(?:[A-Z]{{0,2}}\p{{Sc}}|{_CODES})"
_THOUSANDS = {".": (",", " ", "'", "\u2019"), ",": (r"\.", " ", "'", "\u2019")}


@dataclass(frozen=True)
class Reading:
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
        numbers = ~np.isnan(self.values)
        found = set(self.units[numbers].tolist())
        several = found - {""}
        if len(several) > 1:
            return None
        unit = next(iter(several), "")
        return unit if "" not in found or unit in ("", "%") or _is_money(unit) else None


def read_numbers(text: pa.Array | pa.ChunkedArray, decimal: str = ".") -> Reading:
    """Read numbers from texts.

    Args:
        text: Texts without white space around them. Missing values are neither odd nor marked.
        decimal: Decimal mark, "." or ",".
    """
    array = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
    plain = compute.replace_substring(compute.replace_substring_regex(array, _SPACES, " "), _MINUS, "-")
    marked = _true(compute.is_in(compute.utf8_lower(plain), value_set=pa.array(MISSING)), array)
    parts = compute.extract_regex(plain, _pattern(decimal))
    infinite = _true(compute.match_substring_regex(plain, r"^[+-]?(?i:inf|infinity)$"), array)
    found = parts.is_valid().to_numpy(zero_copy_only=False) & ~marked & ~infinite
    group = {name: compute.fill_null(compute.struct_field(parts, name), "") for name in _GROUPS}
    digits = compute.replace_substring_regex(group["body"], r"[ '\x{2019}]", "")
    digits = compute.replace_substring(digits, "," if decimal == "." else ".", "")
    digits = compute.replace_substring(digits, decimal, ".")
    digits = compute.binary_join_element_wise(digits, group["exponent"], "")
    digits = compute.if_else(pa.array(found), digits, None)
    digits = compute.if_else(pa.array(infinite), plain, digits)
    values = digits.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
    signs = compute.binary_join_element_wise(group["sign"], group["inner"], group["open"], "")
    negative = _true(compute.match_substring_regex(signs, r"[-(]"), array)
    units = compute.binary_join_element_wise(group["before"], group["after"], "").to_numpy(zero_copy_only=False)
    known = array.is_valid().to_numpy(zero_copy_only=False)
    return Reading(np.where(negative & found, -values, values), known & ~(found | marked | infinite), marked, units)


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


def without_marks(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts in which those that mean a missing value are missing."""
    return compute.if_else(compute.is_in(compute.utf8_lower(text), value_set=pa.array(MISSING)), None, text)


def are_plain(text: pa.Array) -> bool:
    """Whether all texts are numbers as programs write them."""
    return bool(compute.all(compute.match_substring_regex(text, f"^({NUMBER})$")).as_py())


_GROUPS = ("open", "sign", "before", "inner", "body", "exponent", "after")


def _pattern(decimal: str) -> str:
    mark = r"\." if decimal == "." else ","
    grouped = "|".join(rf"[1-9]\d{{0,2}}(?:{separator}\d{{3}})+" for separator in _THOUSANDS[decimal])
    body = rf"(?:{grouped}|\d+)(?:{mark}\d*)?|{mark}\d+"
    after = rf"%|{_MONEY}|[\p{{L}}\x{{B0}}\x{{B5}}\x{{B2}}\x{{B3}}/%]{{1,12}}|[\p{{L}}/]{{0,10}}m[23]"
    number = rf"(?P<body>{body})(?P<exponent>(?:[eE][+-]?\d+)?)"
    head = rf"(?P<open>\(?)(?P<sign>[+-]?) ?(?P<before>(?:{_MONEY})?) ?(?P<inner>[+-]?)"
    return rf"^{head}{number} ?(?P<after>(?:{after})?)\)?$"


def _is_money(unit: str) -> bool:
    return bool(compute.match_substring_regex(pa.array([unit]), f"^{_MONEY}$")[0].as_py())


def _true(flags: pa.Array, text: pa.Array) -> NDArray[np.bool_]:
    both = compute.and_(text.is_valid(), compute.fill_null(flags, False))
    found: NDArray[np.bool_] = both.to_numpy(zero_copy_only=False)
    return found
