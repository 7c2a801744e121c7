"""The run folder: what is in it, how it comes to be complete or not at all, and what is wrong with a damaged one."""

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
    """Where a run is while it is being made: beside its place, hidden."""
    return files.beside(_real(out), "partial")


def check_place(out: Path, *, force: bool) -> None:
    """Refuse a place that is taken.

    Args:
        out: Where the run should be.
        force: Replace a run that is there, but never a folder that holds anything else.

    Raises:
        RunError: There is something.
        NotADirectoryError: It is below a file.
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
        raise RunError(f"`out` must be a new folder, got {str(out)!r}, which holds a run: replace it by `force`")
    if not force and _holds(partial / CHECKPOINT):
        raise RunError(
            f"`out` must be a new folder, got {str(out)!r}, into which a fit was stopped: go on with it by `resume`, "
            "or start again by `force`"
        )


def resumable(out: Path) -> Path | None:
    """The folder with the config, and perhaps the checkpoint, of a fit that was stopped."""
    partial = partial_path(out)
    if (partial / CONFIG).is_file():
        return partial
    return out if (out / CONFIG).is_file() and (out / CHECKPOINT).is_dir() else None


def settle(out: Path) -> bool:
    """Finish, or undo, what a fit that was killed has left; nothing is done while another one is running.

    A run that was complete, but not yet in its place, is put there. A run that was just about to be replaced is put
    back. Temporary files, and what is not needed any more, are removed.

    Returns:
        Whether a complete run was put in its place.

    Raises:
        OSError: The folder cannot be written to.
    """
    if not out.name:
        return False
    place, partial, old = _real(out), partial_path(out), _old_path(out)
    put = False
    with files.locked(partial) as running:
        if running:
            return False
        for folder in (place, partial, partial / CHECKPOINT):
            files.remove_temporaries(folder)
        if _is_complete(partial) and not _foreign(place) and not _foreign(partial):
            _put(partial, place)
            put = True
        elif old.is_dir() and not place.exists():
            old.rename(place)
            files.sync_folder(place.parent)
        if place.exists() and not _foreign(old):
            _remove(old)
        _drop_checkpoint(place)
    return put


@contextmanager
def new_run(out: Path, *, resume: Path | None = None) -> Iterator[Path]:
    """A folder to write a run into; it takes its place when the block is left without an error, else it is removed.

    The checkpoint of a training that has ended goes only after that.

    Args:
        out: The place; what is there is replaced at the end.
        resume: A stopped fit to go on with. Its checkpoint is in the new folder; the folder itself is left as it is.

    Raises:
        RunError: Another process is making a run for this place.
        OSError: It cannot be written to.
    """
    _refuse_running(out)
    partial = partial_path(out)
    if resume != partial:
        _remove(partial)
        partial.mkdir(parents=True)
    with files.locked(partial):
        try:
            if resume is not None and resume != partial and (resume / CHECKPOINT).is_dir():
                shutil.copytree(resume / CHECKPOINT, partial / _COPY)
                (partial / _COPY).rename(partial / CHECKPOINT)
            yield partial
            _put(partial, _real(out))
        except KeyboardInterrupt:  # stopped for good: what the checkpoint has can still be gone on with
            if not _holds(partial / CHECKPOINT):
                _remove(partial)
            raise
        except BaseException:
            if resume != partial:  # else a full disk would cost what was there before
                _remove(partial)
            raise
        _drop_checkpoint(out)


def read_fingerprint(path: Path) -> str | None:
    """Of the training rows of a fit that was stopped.

    Raises:
        RunError: The config is damaged.
    """
    try:
        record, _ = files.read_json(path / CONFIG, _CONFIG_RULE)
    except files.DamagedFile as error:
        raise RunError(str(error)) from None
    return record.get("training_rows")


class Run:
    """A run folder that is read; what a fit that was killed has left is put in order before.

    Args:
        path: Of the folder.
        needed: Files that have to be there.

    Raises:
        RunError: It is no run folder, or a file is missing.
    """

    def __init__(self, path: Path, needed: tuple[str, ...] = (POSTERIOR, MODEL, PREPROCESSING)) -> None:
        with suppress(OSError):  # perhaps it may only be read
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
        """How its table became a matrix, and the trained estimator.

        Raises:
            RunError: A file is damaged, cannot be read, or belongs to another run.

        Warns:
            bayesadam.files.NoDigestWarning: It is a run of an earlier version.
        """
        with self._damaged(f"{POSTERIOR} or {MODEL}"):
            estimator, digest = read_estimator(self.path)
        with self._damaged(PREPROCESSING):
            preprocessing = Preprocessing.load(self.path / PREPROCESSING, model=digest)
            inputs, labels = len(preprocessing.inputs.features), len(preprocessing.target.classes)
            if inputs != estimator.n_features_in_ or labels != len(getattr(estimator, "classes_", ())):
                raise files.DamagedFile("it belongs to another model")
        if digest is None:
            files.tell_no_digest(self.path)
        return preprocessing, estimator

    def written(self) -> tuple[str | None, tuple[str, ...]]:
        """The delimiter of the table that was fitted, and the texts that meant a missing value there.

        Raises:
            RunError: The file is damaged, or cannot be read.
        """
        with self._damaged(PREPROCESSING):
            preprocessing = Preprocessing.load(self.path / PREPROCESSING)
        return preprocessing.delimiter, preprocessing.missing

    def report_data(self) -> dict[str, Any]:
        """What the report shows.

        Raises:
            RunError: The file is damaged, or cannot be read.
        """
        with self._damaged(REPORT_DATA):
            data, digest = files.read_json(self.path / REPORT_DATA, "it must be what bayesadam fit has written")
            if data.get("version") != 1:
                raise files.DamagedFile("its version is another")
            model = data.pop("model", None)
            if model is not None and model != _digest(self.path / MODEL, model):
                raise files.DamagedFile("it belongs to another model")
        if digest is None:
            files.tell_no_digest(self.path / REPORT_DATA)
        return data

    def write_report(self) -> Path:
        """Make the page again from what is stored; where it is.

        Raises:
            RunError: What is stored is damaged.
            OSError: The page cannot be written.
        """
        data, page = self.report_data(), self.path / REPORT
        with self._damaged(REPORT_DATA, reads=False), files.reading("it must be what bayesadam fit has written", page):
            write_report(page, data)
        return page

    @contextmanager
    def _damaged(self, name: str, *, reads: bool = True) -> Iterator[None]:
        """Errors of a file that is read, as errors of the run."""
        try:
            yield
        except (files.DamagedFile, OSError) as error:
            if isinstance(error, OSError) and not reads:
                raise
            told = (error.strerror if isinstance(error, OSError) else None) or str(error)
            reason = " ".join(told.split())
            raise RunError(f"the run {str(self.path)!r} must be complete, {name} cannot be read: {reason}") from None


def _put(partial: Path, out: Path) -> None:
    """Rename; what was there is out of the way only once the new one is in place."""
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
    files.sync_folder(out.parent)
    _remove(old)


def _real(out: Path) -> Path:
    """The folder itself, where a symbolic link points to it."""
    return Path(os.path.realpath(out)) if out.is_symlink() else out


def _old_path(out: Path) -> Path:
    """Where a run is for the moment in which another takes its place."""
    return files.beside(_real(out), "old")


def _refuse_running(out: Path) -> None:
    with files.locked(partial_path(out)) as running:
        if running:
            raise RunError(f"`out` must be a new folder, got {str(out)!r}, into which a fit is running")


def _foreign(path: Path) -> list[str]:
    """Names in a folder that no fit has written."""
    known = (*_FILES, CHECKPOINT, _COPY, NEXT)
    found = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    return [name for name in found if name not in known and not files.is_temporary(name)]


def _holds(folder: Path) -> bool:
    """Whether there is something in a folder."""
    return folder.is_dir() and any(not files.is_temporary(entry.name) for entry in folder.iterdir())


def _config(path: Path) -> dict[str, Any]:
    """What the config says; nothing if it is missing or damaged."""
    try:
        return files.read_json(path / CONFIG, _CONFIG_RULE)[0]
    except (OSError, files.DamagedFile):
        return {}


def _digest(path: Path, otherwise: str) -> str:
    """Of a JSON file; the other one where it cannot be told."""
    try:
        return files.read_json(path, "")[1] or otherwise
    except (OSError, files.DamagedFile):
        return otherwise


def _is_complete(path: Path) -> bool:
    """Whether all of a run is in a folder: its config is written first, and again when all else is there."""
    return _config(path).get("complete") is True and all((path / name).is_file() for name in _FILES)


def _drop_checkpoint(path: Path) -> None:
    """Remove the checkpoint of a training that has ended."""
    if (path / CHECKPOINT).is_dir() and _is_complete(path) and _config(path).get("interrupted") is False:
        shutil.rmtree(path / CHECKPOINT, ignore_errors=True)


def _remove(path: Path) -> None:
    if os.path.lexists(path):
        shutil.rmtree(path)
