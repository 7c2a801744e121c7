"""Texts that look equal and are written differently: letters with combining accents, and marks that take no space."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

_INVISIBLE = "[\u00ad\u034f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"


def spelled(text: str) -> str:
    """Return a text in composed form (Unicode's NFC), without marks that take no space."""
    return unicodedata.normalize("NFC", re.sub(_INVISIBLE, "", text))


def spelled_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of text in which every cell is :func:`spelled`."""
    if compute.all(compute.string_is_ascii(column)).as_py() is not False:
        return column
    return compute.utf8_normalize(compute.replace_substring_regex(column, _INVISIBLE, ""), form="NFC")


def one_spelling(values: NDArray[Any], names: Iterable[Any] = ()) -> NDArray[Any]:
    """Return labels in which texts that look equal are equal. Others, and numbers, are as they were.

    Args:
        values: ``(N,)``.
        names: Texts whose spelling is used. Without them it is that of :func:`spelled`.
    """
    distinct = {value for value in values.tolist() if isinstance(value, str)}
    count = Counter(map(spelled, distinct))
    written = {spelled(name): name for name in names if isinstance(name, str)}
    changed = {text: written.get(form := spelled(text), form if count[form] > 1 else text) for text in distinct}
    if all(text == value for text, value in changed.items()):
        return values
    kind = object if values.dtype == object else None
    return np.array([changed.get(value, value) for value in values.tolist()], dtype=kind)
