"""Means over splits with their standard deviations, as in the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.tables import Number


def mean_and_sd(values: Sequence[float], decimals: int | None = None) -> Number:
    """Return the mean and the standard deviation over the splits (divisor ``n - 1``); the latter needs two splits."""
    found = Number.of(values)
    sd = None if found.error is None else found.error * math.sqrt(len(values))
    return Number(found.mean, sd, decimals)


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean; it is ``None`` for a single split."""
    return Number.of(values).error


def in_errors(ours: Number, theirs: Number, splits: int = 10) -> float | None:
    """Return ours minus theirs in standard errors of their mean over ``splits``, or ``None`` if they give none."""
    if ours.mean is None or theirs.mean is None or not theirs.error:
        return None
    return (ours.mean - theirs.mean) / (theirs.error / math.sqrt(splits))
