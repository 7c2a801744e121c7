"""The run folder: its files, how it is written completely or not at all, and errors for damaged folders."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bayesadam import files
from bayesadam.tables.estimators.loading import load_estimator
from bayesadam.tables.estimators.storage import MODEL, POSTERIOR
from bayesadam.tables.report import write_report
from bayesadam.tables.report.write import VERSION
from bayesadam.tables.runs.settings import RunError

CONFIG = "config.json"
METRICS = "metrics.json"
REPORT_DATA = "report.json"
REPORT = "report.html"

FILES = (CONFIG, POSTERIOR, MODEL, METRICS, REPORT_DATA, REPORT)


def check_place(out: Path, *, force: bool) -> None:
    """Raise an error if a run folder cannot be written to a path.

    Args:
        out: Path of the run folder.
        force: Whether an existing run may be replaced. A folder with other files is never replaced.

    Raises:
        RunError: The path is not that of a folder, or the folder exists and may not be replaced.
    """
    if not out.name or out.is_symlink() or (out.exists() and not out.is_dir()):
        kind = "link" if out.is_symlink() else "file" if out.name else "path"
        raise RunError(f"the run must be a folder with a name, got the {kind} {str(out)!r}")
    names = sorted(entry.name for entry in out.iterdir()) if out.is_dir() else []
    foreign = [name for name in names if name not in FILES]
    if foreign:
        raise RunError(f"the run must be a new folder, got {str(out)!r}, in which there is {foreign[0]!r}")
    if names and not force:
        raise RunError(f"the run must be a new folder, got {str(out)!r}, which contains a run (to replace it: force)")


def reserve(out: Path, *, force: bool) -> None:
    """Check that a run folder can be written to a path, before anything takes time.

    Raises:
        RunError: As for :func:`check_place`.
        OSError: The folder cannot be written to.
    """
    new, _ = _temporaries(out)
    with files.locked(out.parent):
        _settle(out)
        check_place(out, force=force)
        new.mkdir(parents=True)
        new.rmdir()


@contextmanager
def new_run(out: Path, *, force: bool = False) -> Iterator[Path]:
    """Context with a temporary folder for a new run, which is renamed at the end, or deleted after an error.

    Runs in the same folder are written and read in turn. The names of temporary folders follow from that of the run, so
    that whoever uses the path next finds what a killed process has left.

    Args:
        out: Final path of the folder.
        force: Whether an existing run is replaced at the end.

    Raises:
        RunError: Another process has written to the path in the meantime; the new run is then beside it.
        OSError: The folder cannot be written to.
    """
    new, old = _temporaries(out)
    with files.locked(out.parent):
        _settle(out)
        new.mkdir(parents=True)
        try:
            yield new
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        try:
            check_place(out, force=force)
        except RunError as error:
            beside = out.with_name(f"run-{secrets.token_hex(4)}")
            new.rename(beside)
            raise RunError(f"{error}; the new run is in {str(beside)!r}") from None
        if out.exists():
            out.rename(old)
        new.rename(out)
        _settle(out)


def _temporaries(out: Path) -> tuple[Path, Path]:
    """Paths beside a run: of a new run that is being written, and of an old one that is being replaced."""
    name = hashlib.sha256(os.fsencode(out.name)).hexdigest()[:16]
    return out.parent / f".run-{name}.new", out.parent / f".run-{name}.old"


def _settle(out: Path) -> None:
    """Put back the run that a killed process was replacing, and remove what else it left. The parent is locked."""
    new, old = _temporaries(out)
    shutil.rmtree(new, ignore_errors=True)
    if old.is_dir():
        old.rename(new if out.exists() else out)
        shutil.rmtree(new, ignore_errors=True)


def load_run(path: Path) -> Any:
    """Return the estimator of a run on the CPU, whatever device it was trained on.

    Raises:
        RunError: The path is not a run folder, or a file is missing, damaged or of another run.
    """
    with _reading(path):
        return load_estimator(path, device="cpu")


def rewrite_report(path: Path) -> Path:
    """Write the page of a run again from the data in its folder, and return the path of the page.

    Raises:
        RunError: The path is not a run folder, or the data are damaged or of another version.
        OSError: The page cannot be written.
    """
    rule = f"{REPORT_DATA} must be what bayesadam fit has written"
    with _reading(path):
        data, _ = files.read_json(path / REPORT_DATA, rule)
    if data.get("version") != VERSION:
        raise RunError(f"the version of {str(path / REPORT_DATA)!r} must be {VERSION}, got {data.get('version')!r}")
    try:
        with files.reading(rule, path / REPORT_DATA):
            write_report(path / REPORT, data)
    except files.DamagedFile as error:
        raise RunError(f"the run {str(path)!r} must be complete, a file cannot be read: {error}") from None
    return path / REPORT


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Context in which no process replaces a run, and in which errors of its files are those of the run."""
    try:
        if any(map(os.path.lexists, _temporaries(path))):
            with suppress(OSError), files.locked(path.parent):
                _settle(path)
        with files.locked(path.parent, shared=True):
            yield
    except (files.DamagedFile, OSError) as error:
        if not isinstance(error, OSError):
            reason = f"must be complete, a file cannot be read: {' '.join(str(error).split())}"
        elif not os.path.isfile(path / CONFIG) and not isinstance(error, PermissionError):
            raise RunError(f"the run must be a folder that bayesadam fit has written, got {str(path)!r}") from None
        elif isinstance(error, FileNotFoundError):
            reason = f"must be complete, it lacks {Path(error.filename).name}"
        else:
            reason = f"must be readable, got {error.strerror} for {error.filename!r}"
        raise RunError(f"the run {str(path)!r} {reason}") from None
