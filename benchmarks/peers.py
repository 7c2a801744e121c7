"""A peer whose module has the name of a script here."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def laplace_torch() -> Any:
    """The module ``laplace`` of laplace-torch, for a script of this folder."""
    here = sys.path.pop(0)
    try:
        return importlib.import_module("laplace")
    finally:
        sys.path.insert(0, here)
