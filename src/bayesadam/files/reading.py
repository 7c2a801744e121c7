"""Files that are read: whatever damage makes of them is one error."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bayesadam.files.writing import json_digest

_LONGEST = 300


class DamagedFile(ValueError):
    """A file that is truncated, damaged, foreign, or written by a newer version of the library."""


class NoDigestWarning(UserWarning):
    """A file of an earlier version has no digest, so that damage in it may not be noticed."""


@contextmanager
def reading(rule: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Around everything that is done with a file's content: what it raises becomes a :class:`DamagedFile`.

    Args:
        rule: What the file must be, as "the posterior file must be a complete safetensors file".
        path: Of the file.

    Raises:
        DamagedFile: Any error in the block, except those of the system and of a memory that is full.
    """
    try:
        yield
    except (DamagedFile, OSError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error):
            raise
        reason = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
        raise DamagedFile(f"{rule}, got {os.fspath(path)!r} ({reason})") from None


def read_json(path: str | os.PathLike[str], rule: str) -> tuple[dict[str, Any], str | None]:
    """Read a JSON object, and see that it is what its digest says.

    Args:
        path: Of the file.
        rule: As for :func:`reading`.

    Returns:
        The record without its digest, and the digest; ``None`` if it has none, as those of earlier versions.

    Raises:
        OSError: The file is missing or cannot be read.
        DamagedFile: It is no JSON object with finite numbers, or its digest is another.
    """
    content = Path(path).read_bytes()
    with reading(rule, path):
        record = json.loads(content.decode("utf-8"))
        if not isinstance(record, dict):
            raise TypeError(f"it is a {type(record).__name__}")
        told = record.pop("digest", None)
        found = json_digest(record)
        if told is not None and told != found:
            raise ValueError("its digest is another: the file is damaged, or was edited")
        return record, told


def tell_no_digest(path: str | os.PathLike[str], *, stacklevel: int = 3) -> None:
    """Warn that a file of an earlier version has no digest."""
    warnings.warn(
        f"{os.fspath(path)!r} has no digest, as files of earlier versions have none: damage may not be noticed",
        NoDigestWarning,
        stacklevel=stacklevel,
    )
