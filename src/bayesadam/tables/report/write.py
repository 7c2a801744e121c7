"""Writing a report, which is checked first, and written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bayesadam.files import write_text

VERSION = 3


def write_report(path: str | os.PathLike[str], data: Mapping[str, Any]) -> None:
    """Write a report as a single HTML file, which needs neither a network nor other files.

    The page has sections on the result in words, the scores with those of other models, predictions, calibration, the
    relation of error and uncertainty, the importance of inputs, groups of rows with wrong uncertainty, the most
    surprising rows, the data, and how to reproduce it. Sections with too few data are omitted.

    Args:
        path: Path of the file. An existing file is replaced.
        data: JSON values that :func:`bayesadam.tables.runs.report_data.report_data` returns. Numbers that are missing
            are ``None``.

    Raises:
        ImportError: Matplotlib or SciPy is not installed.
        ValueError: The data have another version.
        OSError: The folder does not exist or cannot be written to. An existing file is not changed.
    """
    if data.get("version") != VERSION:
        raise ValueError(f"version must be {VERSION}, got {data.get('version')!r}")
    try:
        import matplotlib  # noqa: F401
        import scipy  # noqa: F401
    except ImportError as error:
        raise ImportError(f'the report needs {error.name}: pip install "bayesadam[report]"') from None
    from bayesadam.tables.report.page import render

    write_text(path, render(data), errors="replace")
