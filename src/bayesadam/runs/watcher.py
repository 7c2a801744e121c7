"""What a fit tells its user while it runs, and in whose words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayesadam.runs.prepare import Prepared
from bayesadam.runs.settings import Settings


class Watcher:
    """The user interface of a fit: it is told what happens, and knows what the user calls things.

    This one shows nothing and is for callers in Python.
    """

    def prepared(self, prepared: Prepared) -> None:
        """Called when the table is read and understood."""

    def epoch(self, status: Any) -> None:
        """Called after each epoch of training."""

    def stage(self, what: str) -> None:
        """Called when a stage after the training begins."""

    def words(self, text: str) -> str:
        """A note for the report; names of parameters in it are in backquotes."""
        return text

    def command(self, settings: Settings, out: Path) -> str:
        """What the user would write to fit with these settings."""
        return f"bayesadam.runs.fit({settings!r}, {out!r}, Watcher())"
