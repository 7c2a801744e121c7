"""Files that are written whole or not at all, with a digest of their content, and one error for damage.

All readers have one rule: only a regular file is read; what its header says is compared with the size of the file
before memory is allocated; and whatever else is wrong is a :class:`DamagedFile`.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

if sys.platform != "win32":
    import fcntl

VERSION = 1
"""Version of the format of files with tensors."""
MOST_TENSORS, MOST_HEADER = 2**16, 2**26
"""Largest number of tensors in a file, and of bytes in its header. However small it is, a tensor takes more than a
kilobyte of memory, so that a damaged or malicious file could otherwise take many times its size.
"""
LARGEST = 1e150
"""Largest number with a fraction or an exponent in a JSON file; its square is finite."""
_TEMPORARY = re.compile(r"\.bayesadam-\w{8}\.tmp")
"""Names of the temporary folders of :func:`whole_file`."""
_LOST = 86_400.0
"""Seconds without a change after which a temporary folder is that of a process that was killed."""


class DamagedFile(ValueError):
    """Raised for a file that is truncated, damaged, of another format, or written by another version of the library."""


@contextmanager
def whole_file(path: str | os.PathLike[str], *, mode: int | None = None) -> Iterator[Path]:
    """Context that gives an empty file to write to; it replaces ``path`` if the block ends without an error.

    The file has the name of the target, in a temporary folder beside it. A symbolic link is replaced, and the file that
    it points to is not touched.

    Args:
        path: Path of the file.
        mode: Permissions of the file; by default those of the old one, or those that the umask leaves.

    Raises:
        OSError: The file cannot be written, or something else than a file is there. An existing file is left unchanged.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))
    try:
        _remove_temporaries(target.parent)
        folder = Path(tempfile.mkdtemp(".tmp", ".bayesadam-", target.parent))
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    try:
        temporary = folder / target.name
        temporary.touch()
        if mode is None:
            mode = (target if target.exists() else temporary).stat().st_mode
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(folder: str | os.PathLike[str], *, shared: bool = False) -> Iterator[None]:
    """Context that one writer, or several readers, of a folder are in at a time; other processes and threads wait.

    It is for several files that belong together. A killed process gives the lock back. There is no lock on Windows, on
    file systems without locks, and in a folder that cannot be opened.

    Args:
        folder: The folder.
        shared: Whether to read only.
    """
    with ExitStack() as stack:
        if sys.platform != "win32":
            with suppress(OSError):
                place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, place)
                fcntl.flock(place, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


def _remove_temporaries(folder: Path) -> None:
    """Remove the temporary folders of processes that were killed."""
    with suppress(OSError):
        for path in [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]:
            changed = max(entry.stat().st_mtime for entry in (path, *path.iterdir()))
            if time.time() - changed >= _LOST:
                shutil.rmtree(path, ignore_errors=True)


def write_text(path: str | os.PathLike[str], text: str, *, errors: str = "strict") -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n", errors=errors)


def write_json(
    path: str | os.PathLike[str], record: Mapping[str, Any], *, digest: bool = True, indent: int | None = None
) -> str:
    """Write a record of JSON values, whole or not at all, by default with its digest; return the digest."""
    record = {name: value for name, value in record.items() if name != "digest"}
    found = _digest(json.loads(json.dumps(record, allow_nan=False)))
    write_text(path, json.dumps({"digest": found, **record} if digest else record, indent=indent) + "\n")
    return found


def read_json(path: str | os.PathLike[str], rule: str) -> tuple[dict[str, Any], str | None]:
    """Read a JSON object.

    Args:
        path: Path of the file.
        rule: Requirement of the file, as for :func:`reading`.

    Returns:
        The record without its digest, and the digest; ``None`` if it was written without.

    Raises:
        OSError: The file is missing, cannot be read or is no regular file.
        DamagedFile: The content is not a JSON object, has numbers that are not finite or beyond ``LARGEST``, or its
            digest differs.
    """
    with reading(rule, path), _opened(path) as file:
        record = json.loads(file.read(), parse_float=_number, parse_constant=_number)
        digest = record.pop("digest", None)
        if _digest(record) != digest and digest is not None:
            raise ValueError("its digest does not match: the file is damaged, or was edited")
        return record, digest


def _number(text: str) -> float:
    """A number of a JSON file."""
    value = float(text)
    if not abs(value) <= LARGEST:
        raise ValueError(f"numbers must be finite and at most {LARGEST:g}, got {text}")
    return value


@dataclass(frozen=True)
class Stored:
    """Contents of a file with tensors.

    Attributes:
        kind: Name of the class that the tensors belong to.
        tensors: Tensors by name, in the order in which they were written; on the CPU.
        hyperparameters: Plain values.
        digest: Digest of all of these.
    """

    kind: str
    tensors: dict[str, Tensor]
    hyperparameters: dict[str, Any]
    digest: str


def write_tensors(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]
) -> str:
    """Write a safetensors file whole or not at all.

    Args:
        path: Path of the file.
        kind: Name of the class that the tensors belong to.
        tensors: Tensors on any device.
        hyperparameters: JSON values, or numbers and arrays of NumPy and PyTorch, which are converted.

    Returns:
        The digest.

    Raises:
        TypeError: A hyper-parameter has no JSON form.
        ValueError: There are more than ``MOST_TENSORS`` tensors.
        OSError: The folder does not exist or cannot be written to. An existing file is left unchanged.
    """
    if len(tensors) > MOST_TENSORS:
        raise ValueError(f"tensors must be at most {MOST_TENSORS:,}, got {len(tensors):,}")
    # The format has an order of its own. Samples depend on the order here, which is kept.
    fields = {"version": VERSION, "kind": kind, "tensors": list(tensors), "hyperparameters": dict(hyperparameters)}
    fields = json.loads(json.dumps(fields, default=_plain))  # as they are read: keys are texts
    values = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    digest = _digest(fields, values)
    content = safetensors.torch.save(values, {"bayesadam": json.dumps({"digest": digest, **fields})})
    with whole_file(path) as temporary:
        temporary.write_bytes(content)
    return digest


def read_tensors(path: str | os.PathLike[str], what: str) -> Stored:
    """Read a file that :func:`write_tensors` wrote.

    Args:
        path: Path of the file.
        what: Name of the file in messages, such as "the posterior file".

    Raises:
        OSError: There is no such file, it cannot be read, or it is no regular file.
        DamagedFile: The file is truncated, damaged, of another format, or written by another version of the library.
    """
    with reading(f"{what} must be what this version of bayesadam wrote", path), _opened(path) as file:
        content = file.read()
        length = int.from_bytes(content[:8], "little")
        if length > MOST_HEADER:
            raise ValueError(f"its header must have at most {MOST_HEADER:,} bytes, got {length:,}")
        header = json.loads(content[8 : 8 + length])
        written = header.pop("__metadata__", {})
        if "bayesadam" not in written:
            raise ValueError("another program wrote it")
        fields = json.loads(written["bayesadam"])
        digest = fields.pop("digest")
        if fields["version"] != VERSION:
            raise ValueError(f"its version is {fields['version']!r}, not {VERSION}")
        if len(header) > MOST_TENSORS:
            raise ValueError(f"it must have at most {MOST_TENSORS:,} tensors, got {len(header):,}")
        if sorted(fields["tensors"]) != sorted(header):
            raise ValueError("its list of tensors is not that of its header")
        stored = safetensors.torch.load(content)  # compares the header with the size
        tensors = {name: stored[name] for name in fields["tensors"]}
        if _digest(fields, tensors) != digest:
            raise ValueError("its digest does not match: the file is damaged, or was edited")
        return Stored(str(fields["kind"]), tensors, dict(fields["hyperparameters"]), digest)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[io.BufferedReader]:
    """Context with a regular file that is opened for reading; anything else, such as a pipe, would never end."""
    blocking = getattr(os, "O_NONBLOCK", 0)  # without it, opening a FIFO waits for a writer
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | blocking)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))
        yield file


@contextmanager
def reading(rule: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Context for the use of a file's content, in which any error becomes a :class:`DamagedFile`.

    Args:
        rule: Requirement of the file, such as "the posterior file must be a complete safetensors file".
        path: Path of the file.

    Raises:
        DamagedFile: There was an error in the block, other than system errors, missing packages and lack of memory.
    """
    try:
        yield
    except (DamagedFile, OSError, ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DamagedFile(f"{rule}, got {os.fspath(path)!r} ({reason})") from None


def _digest(record: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> str:
    """SHA-256 of JSON values, whatever their layout, and of tensors."""
    digest = hashlib.sha256(json.dumps(record, sort_keys=True, default=_plain).encode())
    for value in (tensors or {}).values():
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


def _bytes(value: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    memory: memoryview = value.reshape(-1).view(torch.uint8).numpy().data
    return memory


def _plain(value: Any) -> Any:
    """A number or an array of NumPy or PyTorch as numbers and lists."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"hyperparameters must be JSON values, got {value!r}")
    return value.tolist()
