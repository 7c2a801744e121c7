"""The run folder: what is in it, how it comes to be complete or not at all, and what is wrong with a damaged one."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayesadam.runs.errors import RunError
from bayesadam.sklearn import load_estimator
from bayesadam.tabular import Preprocessing

CONFIG = "config.json"
POSTERIOR = "posterior.safetensors"
MODEL = "model.json"
PREPROCESSING = "preprocessing.json"
METRICS = "metrics.json"
REPORT_DATA = "report.json"
REPORT = "report.html"
CHECKPOINT = "checkpoint"

_FILES = (CONFIG, POSTERIOR, MODEL, PREPROCESSING, METRICS, REPORT_DATA, REPORT)


def partial_path(out: Path) -> Path:
    """Where a run is while it is being made: beside its place, hidden."""
    return out.with_name(f".{out.name}.partial")


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
        raise RunError(f"--out must be a folder with a name, got {str(out)!r}")
    if out.exists() and not out.is_dir():
        raise RunError(f"--out must be a folder, got the file {str(out)!r}")
    if not next(parent for parent in out.absolute().parents if parent.exists()).is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    for path in (out, partial_path(out)):
        found = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
        foreign = [name for name in found if name not in (*_FILES, CHECKPOINT)]
        if foreign:
            raise RunError(f"--out must be a new folder, got {str(out)!r}, in which there is {foreign[0]!r}")
    if not force and out.is_dir() and any(out.iterdir()):
        raise RunError(f"--out must be a new folder, got {str(out)!r}, which holds a run: replace it by --force")
    if not force and partial_path(out).exists():
        raise RunError(
            f"--out must be a new folder, got {str(out)!r}, into which a fit was stopped, or is running: go on with it "
            "by --resume, or start again by --force"
        )


def resumable(out: Path) -> Path | None:
    """The folder with the config and the checkpoint of a fit that was stopped."""
    for path in (partial_path(out), out):
        if (path / CONFIG).is_file() and (path / CHECKPOINT).is_dir():
            return path
    return None


@contextmanager
def new_run(out: Path, *, resume: Path | None = None) -> Iterator[Path]:
    """A folder to write a run into; it takes its place when the block is left without an error, else it is removed.

    Args:
        out: The place; what is there is replaced at the end.
        resume: A stopped fit to go on with. Its checkpoint is in the new folder; the folder itself is left as it is.

    Raises:
        OSError: It cannot be written to.
    """
    partial = partial_path(out)
    if resume != partial:
        _remove(partial)
        partial.mkdir(parents=True)
    try:
        if resume is not None and resume != partial:
            shutil.copytree(resume / CHECKPOINT, partial / CHECKPOINT)
        yield partial
        _put(partial, out)
    except KeyboardInterrupt:  # stopped for good: what the checkpoint has can still be gone on with
        if not (partial / CHECKPOINT).is_dir() or not any((partial / CHECKPOINT).iterdir()):
            _remove(partial)
        raise
    except BaseException:
        if resume != partial:  # else a full disk would cost what was there before
            _remove(partial)
        raise


def read_fingerprint(path: Path) -> str | None:
    """Of the training rows of a fit that was stopped."""
    record = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    return record.get("training_rows") if isinstance(record, dict) else None


class Run:
    """A run folder that is read.

    Args:
        path: Of the folder.

    Raises:
        RunError: It is no run folder, or a file is missing.
    """

    def __init__(self, path: Path, needed: tuple[str, ...] = (POSTERIOR, MODEL, PREPROCESSING)) -> None:
        if not path.is_dir():
            raise RunError(f"the run must be a folder that bayesadam fit has written, got {str(path)!r}")
        missing = [name for name in needed if not (path / name).is_file()]
        if len(missing) == len(needed) and not (path / CONFIG).is_file():
            raise RunError(f"the run must be a folder that bayesadam fit has written, got {str(path)!r}")
        if missing:
            raise RunError(f"the run {str(path)!r} must be complete, it lacks {', '.join(missing)}")
        self.path = path

    def preprocessing(self) -> Preprocessing:
        """How its table became a matrix."""
        try:
            return Preprocessing.load(self.path / PREPROCESSING)
        except ValueError as error:
            raise self._damaged(PREPROCESSING, error) from None

    def estimator(self) -> Any:
        """The trained estimator."""
        try:
            return load_estimator(self.path)
        except (ValueError, KeyError, TypeError, RuntimeError, FileNotFoundError) as error:
            raise self._damaged(f"{POSTERIOR} or {MODEL}", error) from None

    def report_data(self) -> dict[str, Any]:
        """What the report shows."""
        try:
            data = json.loads((self.path / REPORT_DATA).read_text(encoding="utf-8"))
            if isinstance(data, dict) and data["version"] == 1:
                return data
            raise ValueError("its version is another")
        except (ValueError, KeyError) as error:
            raise self._damaged(REPORT_DATA, error) from None

    def _damaged(self, name: str, error: Exception) -> RunError:
        reason = " ".join(str(error).split())
        return RunError(f"the run {str(self.path)!r} must be complete, {name} cannot be read: {reason}")


def write_json(path: Path, value: Any) -> None:
    """JSON of plain numbers, texts, lists and mappings."""
    path.write_text(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _put(partial: Path, out: Path) -> None:
    """Rename; what was there is out of the way only once the new one is in place."""
    if not out.exists():
        partial.rename(out)
        return
    old = out.with_name(f".{out.name}.old")
    _remove(old)
    out.rename(old)
    partial.rename(out)
    _remove(old)


def _remove(path: Path) -> None:
    if os.path.lexists(path):
        shutil.rmtree(path)
