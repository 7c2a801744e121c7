"""Files that are there whole or not at all, however a process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, which takes its place if the block succeeds.

    ::

        with replacing(context.folder / "state.pt") as path:
            torch.save(state, path)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")  # keeps the suffix, by which some writers go
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file by way of a temporary one."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
