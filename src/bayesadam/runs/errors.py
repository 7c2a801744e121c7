"""The error class of this package."""

from __future__ import annotations

from typing import Any


class RunError(ValueError):
    """A fit or a prediction is not possible with these arguments. The message is one line for the user.

    Names of parameters are in backquotes (`held_out`), so that a user interface can replace them by its own names.

    Args:
        message: The message for the user.
        remedy: Settings, by name, with which the fit would be possible.
    """

    def __init__(self, message: str, **remedy: Any) -> None:
        super().__init__(message)
        self.remedy = remedy
