"""How much the demo trains, what its parts give back, and means with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Advance = Callable[[str, int, int], None]
"""Called with what is being done, the steps done and the steps in all."""

Rows = dict[str, dict[str, float]]
"""Scores by method."""


@dataclass(frozen=True)
class Effort:
    """How much is trained.

    Attributes:
        tables: Tables of prices.
        price_rows: Rows of each that are trained on.
        repetitions: Splits of the digits, at least 2.
        digit_rows: Images that are trained on.
        epochs: Of the networks for digits.
        curve_steps: Of IVON on the curve.
        estimator: What keeps the estimator's training short; nothing, and it has its defaults.
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
"""A few seconds, to see that it runs: what it says is of networks that have hardly been trained."""


@dataclass(frozen=True)
class Part:
    """A part of the demo: numbers for the screen and the file, and what the figures need."""

    numbers: dict[str, Any]
    shown: dict[str, Any]


def seed_of(seed: int, *place: int) -> int:
    """A seed for every place in the demo."""
    return int(np.random.SeedSequence([seed, *place]).generate_state(1)[0] >> 1)


def mean_rows(repetitions: Sequence[Rows]) -> Rows:
    """The mean of every score over the repetitions."""
    return {
        method: {name: sum(rows[method][name] for rows in repetitions) / len(repetitions) for name in row}
        for method, row in repetitions[0].items()
    }


def differences(repetitions: Sequence[Rows], ours: str, other: str) -> dict[str, dict[str, float]]:
    """Ours minus the other's in every score, paired by repetition.

    Returns:
        By score the mean, its standard error, and ``"t"``: the mean in standard errors, over the 97.5% quantile of
        Student's t for so many repetitions, so that beyond -1 and 1 is more than chance at the 5% level.
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
