"""A report on disk: checked first, written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bayesadam.files import write_text

VERSION = 1
TASKS = ("regression", "classification")


def write_report(path: str | os.PathLike[str], data: Mapping[str, Any]) -> None:
    """Write a report as one HTML file that needs nothing else: no network, no other file.

    The page has a section for everything in ``data`` and leaves out what is missing, empty, or too little to be drawn:
    the result in words, the data, scores beside other models, predictions, calibration, the relation of error and
    uncertainty, which inputs matter, groups of rows with wrong uncertainty, the rows that surprise most, the weights,
    training, and how to make it again.

    Args:
        path: Of the file; one that is there is replaced.
        data: JSON values: ``version`` (1), ``task`` (``"regression"`` or ``"classification"``) and any of ``title``,
            ``target``, ``classes``, ``created``, ``data``, ``metrics``, ``margins``, ``held_out``, ``drivers``,
            ``surprises``, ``training``, ``weights`` and ``reproduce``. Numbers that are missing are ``None``. In
            ``held_out`` all lists are as long as the first and an optional ``row`` has the rows' numbers in the file;
            ``weights["signal_to_noise"]`` has quantiles of the logarithm to base 10 from the least to the largest, at
            evenly spaced probabilities; ``margins`` has, by model, by how much its NLL is above ours and the standard
            error of that.

    Raises:
        ImportError: Bokeh is not installed.
        ValueError: Another version, an unknown task, or lists that do not fit together.
        OSError: The folder does not exist or cannot be written to; a file that was there is left as it was.
    """
    _check(data)
    try:
        import bokeh  # noqa: F401
    except ImportError:
        raise ImportError('the report needs bokeh: pip install "bayesadam[report]"') from None
    from bayesadam.report.page import render

    write_text(path, render(data), errors="replace")


def _check(data: Mapping[str, Any]) -> None:
    if data.get("version") != VERSION:
        raise ValueError(f"version must be {VERSION}, got {data.get('version')!r}")
    if data.get("task") not in TASKS:
        raise ValueError(f"task must be one of {TASKS}, got {data.get('task')!r}")
    lengths = {name: len(values) for name, values in (data.get("held_out") or {}).items() if values}
    for name, length in lengths.items():
        first = next(iter(lengths))
        if length != lengths[first]:
            raise ValueError(f"held_out[{name!r}] must be as long as {first!r} ({lengths[first]}), got {length!r}")
    if data["task"] == "classification":
        _check_classes(data)


def _check_classes(data: Mapping[str, Any]) -> None:
    held = data.get("held_out") or {}
    widths = {len(row) for row in held.get("probs") or ()}
    classes = data.get("classes")
    if widths and widths != {len(classes) if classes else max(widths)}:
        rule = f"one of the {len(classes)} classes" if classes else "the same classes in every row"
        raise ValueError(f"held_out['probs'] must have a column for {rule}, got {sorted(widths)!r}")
    codes = [code for code in held.get("label") or () if code is not None]
    for code in codes:
        if widths and not (isinstance(code, int) and 0 <= code < max(widths)):
            raise ValueError(f"held_out['label'] must be codes from 0 to {max(widths) - 1}, got {code!r}")
