"""Texts that look equal and are written differently: letters with combining accents, and marks that take no space."""

from __future__ import annotations

import re
import unicodedata

_INVISIBLE = "[\u00ad\u034f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"


def spelled(text: str) -> str:
    """Return a text in composed form (Unicode's NFC), without marks that take no space."""
    return unicodedata.normalize("NFC", text if text.isascii() else re.sub(_INVISIBLE, "", text))
