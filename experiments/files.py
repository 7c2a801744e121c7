"""Writing of files that are complete or do not exist, even if the process is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context with a temporary path beside ``path``. The temporary file replaces ``path`` if the block succeeds.

    ::

        with replacing(context.folder / "state.pt") as path:
            torch.save(state, path)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")  # some writers depend on the suffix
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text to a temporary file, which then replaces ``path``."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
