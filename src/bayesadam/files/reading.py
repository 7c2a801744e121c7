"""Reading files, with one error for all kinds of damage."""

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
    """Raised for a file that is truncated, damaged, of another format, or written by a newer version of the library."""


class NoDigestWarning(UserWarning):
    """Warning that a file of an earlier version has no digest, so that damage may go unnoticed."""


@contextmanager
def reading(rule: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Context for the use of a file's content, in which any error becomes a :class:`DamagedFile`.

    Args:
        rule: Requirement of the file, such as "the posterior file must be a complete safetensors file".
        path: Path of the file.

    Raises:
        DamagedFile: There was an error in the block, other than system errors and lack of memory.
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
    """Read a JSON object, and check its digest.

    Args:
        path: Path of the file.
        rule: Requirement of the file, as for :func:`reading`.

    Returns:
        The record without its digest, and the digest; ``None`` for files of earlier versions without one.

    Raises:
        OSError: The file is missing or cannot be read.
        DamagedFile: The content is not a JSON object with finite numbers, or its digest differs.
    """
    content = Path(path).read_bytes()
    with reading(rule, path):
        record = json.loads(content.decode("utf-8"))
        if not isinstance(record, dict):
            raise TypeError(f"it is a {type(record).__name__}")
        told = record.pop("digest", None)
        found = json_digest(record)
        if told is not None and told != found:
            raise ValueError("its digest does not match: the file is damaged, or was edited")
        return record, told


def tell_no_digest(path: str | os.PathLike[str], *, stacklevel: int = 3) -> None:
    """Warn that a file of an earlier version has no digest."""
    warnings.warn(
        f"{os.fspath(path)!r} has no digest, as files of earlier versions have none: damage may not be noticed",
        NoDigestWarning,
        stacklevel=stacklevel,
    )
