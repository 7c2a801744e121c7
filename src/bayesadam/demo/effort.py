"""The amount of training in the demo, the results of its parts, and means with standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Advance = Callable[[str, int, int], None]
"""A function of the current work, the number of steps done, and the number of all steps."""

Rows = dict[str, dict[str, float]]
"""Scores by method."""


@dataclass(frozen=True)
class Effort:
    """The amount of training.

    Attributes:
        tables: Number of tables of prices.
        price_rows: Number of training rows of each table.
        repetitions: Number of splits of the digits, at least 2.
        digit_rows: Number of training images.
        epochs: Number of epochs of the networks for digits.
        curve_steps: Number of steps of IVON on the curve.
        estimator: Arguments that shorten the estimator's training; if empty, it has its defaults.
    """

    tables: int = 3
    price_rows: int = 400
    repetitions: int = 6
    digit_rows: int = 1000
    epochs: int = 30
    curve_steps: int = 2000
    estimator: Mapping[str, int] = field(default_factory=dict)


FULL = Effort()
QUICK = Effort(
    tables=2,
    price_rows=100,
    repetitions=2,
    digit_rows=300,
    epochs=4,
    curve_steps=100,
    estimator={"members": 4, "epochs": 100},
)
"""A few seconds of training, to see that the demo runs; its networks have hardly been trained."""


@dataclass(frozen=True)
class Part:
    """The results of a part of the demo: numbers for the screen and the file, and data for the figures."""

    numbers: dict[str, Any]
    shown: dict[str, Any]


def seed_of(seed: int, *place: int) -> int:
    """Return a seed for a place in the demo."""
    return int(np.random.SeedSequence([seed, *place]).generate_state(1)[0] >> 1)


def mean_rows(repetitions: Sequence[Rows]) -> Rows:
    """Return the mean of every score over the repetitions."""
    return {
        method: {name: sum(rows[method][name] for rows in repetitions) / len(repetitions) for name in row}
        for method, row in repetitions[0].items()
    }


def differences(repetitions: Sequence[Rows], ours: str, other: str) -> dict[str, dict[str, float]]:
    """Return the difference between our scores and those of another method, paired by repetition.

    Returns:
        For every score the mean, its standard error, and ``"t"``: the mean in standard errors, divided by the 97.5%
        quantile of Student's t for this number of repetitions. It is significant at the 5% level if it is below -1 or
        above 1.
    """
    found = {}
    for name in repetitions[0][ours]:
        values = np.array([rows[ours][name] - rows[other][name] for rows in repetitions])
        found[name] = _difference(values)
    return found


def _difference(values: np.ndarray[Any, Any]) -> dict[str, float]:
    from scipy.stats import t

    mean, error = float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
    bound = error * float(t.ppf(0.975, len(values) - 1))
    return {"mean": mean, "standard error": error, "t": mean / bound if bound else 0.0}
