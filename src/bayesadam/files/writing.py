"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayesadam.files import locks

MAX_NAME = 255
"""Length in bytes of the longest name that file systems accept."""
_LOST = 3600.0
"""Seconds without a change after which a temporary file that cannot be locked counts as lost."""
_TEMPORARY = re.compile(r"\.bayesadam-[0-9a-f]{16}(\.\w{1,15})?")
_EARLIER = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")  # of versions that did not lock them
_IN_USE: set[Path] = set()  # by this process, whose writers may have put another file under that name
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Context that gives a temporary file to write to; it replaces ``path`` if the block ends without an error.

    A symbolic link is replaced, and the file that it points to is left unchanged. The new file has the permissions of
    the old one, or those that the umask leaves. Temporary files of killed processes in the folder are removed. For a
    FIFO or a character device, the content is written to it when it is complete.

    Raises:
        OSError: The file cannot be written, or is none of these. An existing file is left unchanged.
    """
    path = Path(path)
    kind = _mode(path)
    through = kind is not None and (stat.S_ISFIFO(kind) or stat.S_ISCHR(kind))
    if kind is not None and not through and not stat.S_ISREG(kind):
        number = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
        raise OSError(number, os.strerror(number), str(path))
    target = path
    folder = Path(tempfile.gettempdir()) if through else target.parent
    remove_temporaries(folder)
    try:
        temporary, descriptor = _create(folder, target.suffix)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    _IN_USE.add(temporary)
    try:
        yield temporary
        if through:
            with temporary.open("rb") as source, open(os.open(target, os.O_WRONLY), "wb") as sink:
                shutil.copyfileobj(source, sink)
        else:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            if kind is not None:
                with contextlib.suppress(PermissionError):
                    os.chmod(temporary, stat.S_IMODE(kind))
            temporary.replace(target)
            sync_folder(folder)
    finally:
        _IN_USE.discard(temporary)
        with contextlib.suppress(OSError):
            temporary.unlink()
        if descriptor is not None:
            os.close(descriptor)


def write_text(path: str | os.PathLike[str], text: str, *, errors: str = "strict") -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n", errors=errors)


def write_json(
    path: str | os.PathLike[str], record: Mapping[str, Any], *, digest: bool = True, indent: int | None = None
) -> str:
    """Write plain numbers, texts, lists and mappings as JSON, whole or not at all.

    Args:
        path: Path of the file.
        record: Mapping to write; a digest in it is left out.
        digest: Whether to write a digest before it, for :func:`bayesadam.files.read_json`.
        indent: Indentation of the lines; ``None`` writes a single line.

    Returns:
        The digest.
    """
    record = {name: value for name, value in record.items() if name != "digest"}
    found = json_digest(json.loads(json.dumps(record, allow_nan=False)))
    told = {"digest": found, **record} if digest else record
    text = json.dumps(told, ensure_ascii=False, allow_nan=False, indent=indent)
    if not _is_utf8(text):  # names of files may hold what is no text
        text = json.dumps(told, allow_nan=False, indent=indent)
    write_text(path, text + "\n")
    return found


def json_digest(record: Mapping[str, Any]) -> str:
    """SHA-256 of a record's values, whatever their layout; ``ValueError`` if numbers are not finite."""
    text = json.dumps(record, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sync_folder(folder: Path) -> None:
    """Make sure that renames in a folder survive a power failure, if the system supports it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def beside(path: Path, ending: str) -> Path:
    """``.NAME.ending`` beside a path, with a shortened name where that would be too long."""
    name = path.name
    if len(os.fsencode(name)) + len(ending) + 2 > MAX_NAME:
        short = os.fsencode(name)[: MAX_NAME - len(ending) - 20].decode(errors="ignore")
        name = f"{short}~{hashlib.sha256(os.fsencode(name)).hexdigest()[:12]}"
    return path.with_name(f".{name}.{ending}")


def is_temporary(name: str) -> bool:
    """Whether a name is that of a temporary file of :func:`whole_file`, in this version or an earlier one."""
    return bool(_TEMPORARY.fullmatch(name) or _EARLIER.fullmatch(name))


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files in a folder whose writers are gone."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found = [folder / entry.name for entry in entries if is_temporary(entry.name)]
        for path in found:
            if path not in _IN_USE:
                with contextlib.suppress(OSError):
                    _remove_if_lost(path)


def _remove_if_lost(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        held = locks.lock(descriptor, wait=False)
        if held is None or not _TEMPORARY.fullmatch(path.name):
            held = held is not False and time.time() - os.fstat(descriptor).st_mtime > _LOST
        if held:
            path.unlink()
    finally:
        os.close(descriptor)


def _create(folder: Path, suffix: str) -> tuple[Path, int | None]:
    """Create a temporary file; return it with the descriptor by which it is locked."""
    suffix = suffix if re.fullmatch(r"\.\w{1,15}", suffix) else ""
    while True:
        path = folder / f".bayesadam-{uuid.uuid4().hex[:16]}{suffix}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if not locks.THERE:  # Windows renames no file that is open
            os.close(descriptor)
            return path, None
        locks.lock(descriptor, wait=True)
        if path.exists():  # another process may have taken it for lost before it was locked
            return path, descriptor
        os.close(descriptor)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
