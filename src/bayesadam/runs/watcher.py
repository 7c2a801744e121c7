"""The interface between a fit and its user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayesadam.runs.prepare import Prepared
from bayesadam.runs.settings import Settings


class Watcher:
    """The user interface of a fit, which is informed of its progress and translates names of parameters.

    This base class shows nothing and is for callers in Python.
    """

    def prepared(self, prepared: Prepared) -> None:
        """Called when the table has been read and prepared."""

    def epoch(self, status: Any) -> None:
        """Called after each epoch of training."""

    def stage(self, what: str) -> None:
        """Called when a stage after the training begins."""

    def words(self, text: str) -> str:
        """Translate a note for the report, in which names of parameters are in backquotes."""
        return text

    def command(self, settings: Settings, out: Path) -> str:
        """Return the command with which the user would fit with these settings."""
        return f"bayesadam.runs.fit({settings!r}, {out!r}, Watcher())"
