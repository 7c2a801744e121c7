"""The one error of this package."""

from __future__ import annotations

from typing import Any


class RunError(ValueError):
    """A fit or a prediction that cannot be done as asked; the message is one line for the user.

    Parameters of the caller are in backquotes (`held_out`), so that a user interface can put in what it calls them.

    Args:
        message: For the user.
        remedy: Settings of a fit that would be possible, by name, in place of those given.
    """

    def __init__(self, message: str, **remedy: Any) -> None:
        super().__init__(message)
        self.remedy = remedy
