"""Reading of files from a folder of the user, or from the publisher with a local cache, always with a checksum."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

VARIABLE = "BAYESADAM_DATA"
"""Environment variable with the path of a folder that has the files. If it is set, nothing is downloaded."""


@dataclass(frozen=True)
class File:
    """One file of a data set.

    Attributes:
        path: Relative to the data folder (and to the cache).
        sha256: Accepted digests. A download must have the first one. An existing file may have another one, for the
            same content in another compression.
        url: Public address that serves the first digest.
    """

    path: str
    sha256: tuple[str, ...]
    url: str


def read(file: File, root: str | os.PathLike[str] | None = None) -> bytes:
    """Return the bytes of a file, which is downloaded into the cache if necessary.

    Args:
        file: The file.
        root: Folder with the files. The default is that of the environment variable ``BAYESADAM_DATA``, or if it is not
            set, a cache in the user's cache folder.

    Raises:
        FileNotFoundError: The given folder is missing, or lacks the file.
        ValueError: The checksum is wrong.
        ModuleNotFoundError: A download is needed and pooch is not installed.
        OSError: The download failed.
    """
    given = root if root is not None else os.environ.get(VARIABLE) or None
    folder = Path(_pooch().os_cache("bayesadam") if given is None else given)
    if given is not None and not folder.is_dir():
        raise FileNotFoundError(f"root (or {VARIABLE}) must be an existing folder, got {str(folder)!r}")
    path = folder / file.path
    if path.is_file():
        return _checked(path, file)
    if given is not None:
        raise FileNotFoundError(
            f"{path} must exist: put the file from {file.url} there, or unset {VARIABLE} to let it be downloaded"
        )
    _download(file, path)
    return _checked(path, file)


def _checked(path: Path, file: File) -> bytes:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest not in file.sha256:
        rule = " or ".join(file.sha256)
        raise ValueError(f"{path} must have sha256 {rule}, got {digest}: replace it by the file from {file.url}")
    return content


def _pooch() -> Any:
    try:
        return import_module("pooch")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f'pooch must be installed to download data: pip install "bayesadam[data]", '
            f"or set {VARIABLE} to a folder that has the files"
        ) from None


def _download(file: File, path: Path) -> None:
    """Download a file into the cache, completely and with a checked digest, or not at all."""
    advice = f"download it yourself and put it at {path}"
    try:
        _pooch().retrieve(file.url, f"sha256:{file.sha256[0]}", fname=path.name, path=path.parent)
    except ValueError as error:
        raise ValueError(
            f"{file.url} must have sha256 {file.sha256[0]}, got other bytes: try again, or {advice}"
        ) from error
    except OSError as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise OSError(f"{file.url} must be reachable, got {reason}: {advice}, or set {VARIABLE}") from error
