"""The run folder: its files, how it is written completely or not at all, and errors for damaged folders."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bayesadam import files
from bayesadam.report import write_report
from bayesadam.runs.errors import RunError
from bayesadam.runs.lock import locked
from bayesadam.sklearn.storage import MODEL, NEXT, POSTERIOR, read_estimator
from bayesadam.tabular import Preprocessing

CONFIG = "config.json"
PREPROCESSING = "preprocessing.json"
METRICS = "metrics.json"
REPORT_DATA = "report.json"
REPORT = "report.html"
CHECKPOINT = "checkpoint"

_FILES = (CONFIG, POSTERIOR, MODEL, PREPROCESSING, METRICS, REPORT_DATA, REPORT)
_COPY = ".checkpoint.copy"
_CONFIG_RULE = "the config must have been written by bayesadam fit"


def partial_path(out: Path) -> Path:
    """Return the hidden folder, beside the final one, in which a run is written."""
    return _beside(out, "partial")


def check_place(out: Path, *, force: bool) -> None:
    """Raise an error if a run folder cannot be written to a path.

    Args:
        out: Path of the run folder.
        force: Whether an existing run may be replaced. A folder with other files is never replaced.

    Raises:
        RunError: The folder exists and may not be replaced, or a fit is running or was stopped there.
        NotADirectoryError: A parent of the path is a file.
    """
    if not out.name:
        raise RunError(f"`out` must be a folder with a name, got {str(out)!r}")
    if out.exists() and not out.is_dir():
        raise RunError(f"`out` must be a folder, got the file {str(out)!r}")
    if not next(parent for parent in out.absolute().parents if parent.exists()).is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    partial = partial_path(out)
    for path, where in ((out, "in which"), (partial, f"but in {str(partial)!r}, where it would be made,")):
        if foreign := _foreign(path):
            raise RunError(f"`out` must be a new folder, got {str(out)!r}, {where} there is {foreign[0]!r}")
    _refuse_running(out)
    if not force and out.is_dir() and any(out.iterdir()):
        raise RunError(f"`out` must be a new folder, got {str(out)!r}, which contains a run: replace it by `force`")
    if not force and _holds(partial / CHECKPOINT):
        raise RunError(
            f"`out` must be a new folder, got {str(out)!r}, in which a fit was stopped: continue it by `resume`, "
            "or start again by `force`"
        )


def resumable(out: Path) -> Path | None:
    """Return the folder with the config, and perhaps the checkpoint, of a stopped fit; ``None`` if there is none."""
    partial = partial_path(out)
    if (partial / CONFIG).is_file():
        return partial
    return out if (out / CONFIG).is_file() and (out / CHECKPOINT).is_dir() else None


def settle(out: Path) -> bool:
    """Finish or undo the last operations of a killed fit, unless another fit is running there.

    A run that was complete, but not yet in its final folder, is moved there. A run that was about to be replaced is
    moved back. Temporary files and other remains are deleted.

    Returns:
        Whether a complete run was moved to its final folder.

    Raises:
        OSError: The folder cannot be written to.
    """
    if not out.name:
        return False
    place, partial, old = _real(out), partial_path(out), _old_path(out)
    put = False
    with locked(partial) as running:
        if running:
            return False
        for folder in (partial, partial / CHECKPOINT):
            files.remove_temporaries(folder, unchanged_for=0.0)
        if _is_complete(partial) and not _foreign(place) and not _foreign(partial):
            _put(partial, place)
            put = True
        elif old.is_dir() and not place.exists():
            old.rename(place)
        if place.exists() and not _foreign(old):
            _remove(old)
        _drop_checkpoint(place)
    return put


@contextmanager
def new_run(out: Path, *, resume: Path | None = None) -> Iterator[Path]:
    """Context with a folder for a new run, which is moved to its final path at the end, or deleted after an error.

    The checkpoint of a complete training is deleted only after that.

    Args:
        out: Final path of the folder. An existing run is replaced at the end.
        resume: Folder of a stopped fit to resume. Its checkpoint is copied to the new folder, and the folder itself is
            not changed.

    Raises:
        RunError: Another process is writing a run to this path.
        OSError: The folder cannot be written to.
    """
    _refuse_running(out)
    partial = partial_path(out)
    if resume != partial:
        _remove(partial)
        partial.mkdir(parents=True)
    with locked(partial):
        try:
            if resume is not None and resume != partial and (resume / CHECKPOINT).is_dir():
                shutil.copytree(resume / CHECKPOINT, partial / _COPY)
                (partial / _COPY).rename(partial / CHECKPOINT)
            yield partial
            _put(partial, _real(out))
        except KeyboardInterrupt:  # stopped by the user: the checkpoint can be resumed
            if not _holds(partial / CHECKPOINT):
                _remove(partial)
            raise
        except BaseException:
            if resume != partial:  # if the disk is full, the stopped fit must remain
                _remove(partial)
            raise
        _drop_checkpoint(out)


def read_fingerprint(path: Path) -> str | None:
    """Return the fingerprint of the training rows of a stopped fit.

    Raises:
        RunError: The config is damaged.
    """
    try:
        record, _ = files.read_json(path / CONFIG, _CONFIG_RULE)
    except files.DamagedFile as error:
        raise RunError(str(error)) from None
    return record.get("training_rows")


class Run:
    """A run folder for reading. If a fit was killed there, the folder is put in order first.

    Args:
        path: Path of the folder.
        needed: Names of the files that must exist.

    Raises:
        RunError: The path is not a run folder, or a file is missing.
    """

    def __init__(self, path: Path, needed: tuple[str, ...] = (POSTERIOR, MODEL, PREPROCESSING)) -> None:
        with suppress(OSError):  # the folder may be read-only
            settle(path)
        try:
            missing = [name for name in needed if not (path / name).is_file()]
            if not path.is_dir() or (len(missing) == len(needed) and not (path / CONFIG).is_file()):
                raise RunError(f"the run must be a folder that bayesadam fit has written, got {str(path)!r}")
        except OSError as error:
            raise RunError(f"the run must be a folder that can be read, got {str(path)!r} ({error.strerror})") from None
        if missing:
            raise RunError(f"the run {str(path)!r} must be complete, it lacks {', '.join(missing)}")
        self.path = path

    def load(self) -> tuple[Preprocessing, Any]:
        """Return the preprocessing of the table and the trained estimator.

        Raises:
            RunError: A file is damaged, cannot be read, or belongs to another run.
        """
        with self._damaged(f"{POSTERIOR} or {MODEL}"):
            estimator, digest = read_estimator(self.path)
        with self._damaged(PREPROCESSING):
            preprocessing = Preprocessing.load(self.path / PREPROCESSING, model=digest)
            inputs, labels = len(preprocessing.inputs.features), len(preprocessing.target.classes)
            if inputs != estimator.n_features_in_ or labels != len(getattr(estimator, "classes_", ())):
                raise files.DamagedFile("it belongs to another model")
        return preprocessing, estimator

    def written(self) -> tuple[str | None, tuple[str, ...]]:
        """Return the delimiter of the training table and the texts that meant a missing value in it.

        Raises:
            RunError: The file is damaged, or cannot be read.
        """
        with self._damaged(PREPROCESSING):
            preprocessing = Preprocessing.load(self.path / PREPROCESSING)
        return preprocessing.delimiter, preprocessing.missing

    def report_data(self) -> dict[str, Any]:
        """Return the data of the report.

        Raises:
            RunError: The file is damaged, or cannot be read.
        """
        with self._damaged(REPORT_DATA):
            data, digest = files.read_json(self.path / REPORT_DATA, "it must be what bayesadam fit has written")
            if data.get("version") != 1 or digest is None:
                raise files.DamagedFile("its version is another, or it has no digest")
            model = data.pop("model", None)
            if model != _digest(self.path / MODEL, model):
                raise files.DamagedFile("it belongs to another model")
        return data

    def write_report(self) -> Path:
        """Write the page again from the stored data, and return its path.

        Raises:
            RunError: The stored data are damaged.
            OSError: The page cannot be written.
        """
        data, page = self.report_data(), self.path / REPORT
        with self._damaged(REPORT_DATA, reads=False), files.reading("it must be what bayesadam fit has written", page):
            write_report(page, data)
        return page

    @contextmanager
    def _damaged(self, name: str, *, reads: bool = True) -> Iterator[None]:
        """Context that raises errors of reading a file as errors of the run."""
        try:
            yield
        except (files.DamagedFile, OSError) as error:
            if isinstance(error, OSError) and not reads:
                raise
            told = (error.strerror if isinstance(error, OSError) else None) or str(error)
            reason = " ".join(told.split())
            raise RunError(f"the run {str(self.path)!r} must be complete, {name} cannot be read: {reason}") from None


def _put(partial: Path, out: Path) -> None:
    """Move a complete run to its final path. An existing run is deleted only after that."""
    old = _old_path(out)
    if out.exists():
        _remove(old)
        out.rename(old)
    try:
        partial.rename(out)
    except OSError:
        if old.is_dir():
            old.rename(out)
        raise
    _remove(old)


def _beside(out: Path, ending: str) -> Path:
    real = _real(out)
    return real.with_name(f".{real.name}.{ending}")


def _real(out: Path) -> Path:
    """Return the folder to which a symbolic link points."""
    return Path(os.path.realpath(out)) if out.is_symlink() else out


def _old_path(out: Path) -> Path:
    """Return the path of a run at the moment at which another run replaces it."""
    return _beside(out, "old")


def _refuse_running(out: Path) -> None:
    with locked(partial_path(out)) as running:
        if running:
            raise RunError(f"`out` must be a new folder, got {str(out)!r}, in which a fit is running")


def _foreign(path: Path) -> list[str]:
    """Return the names of files in a folder that no fit has written."""
    known = (*_FILES, CHECKPOINT, _COPY, NEXT)
    found = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    return [name for name in found if name not in known and not files.is_temporary(name)]


def _holds(folder: Path) -> bool:
    """Whether a folder exists and has files other than temporary ones."""
    return folder.is_dir() and any(not files.is_temporary(entry.name) for entry in folder.iterdir())


def _config(path: Path) -> dict[str, Any]:
    """Return the contents of the config, or an empty dictionary if it is missing or damaged."""
    try:
        return files.read_json(path / CONFIG, _CONFIG_RULE)[0]
    except (OSError, files.DamagedFile):
        return {}


def _digest(path: Path, otherwise: str) -> str:
    """Return the digest of a JSON file, or ``otherwise`` if it is unknown."""
    try:
        return files.read_json(path, "")[1] or otherwise
    except (OSError, files.DamagedFile):
        return otherwise


def _is_complete(path: Path) -> bool:
    """Whether a run is complete. This is recorded in its config, which is written again after all other files."""
    return _config(path).get("complete") is True and all((path / name).is_file() for name in _FILES)


def _drop_checkpoint(path: Path) -> None:
    """Delete the checkpoint of a complete training."""
    if (path / CHECKPOINT).is_dir() and _is_complete(path) and _config(path).get("interrupted") is False:
        shutil.rmtree(path / CHECKPOINT, ignore_errors=True)


def _remove(path: Path) -> None:
    if os.path.lexists(path):
        shutil.rmtree(path)
