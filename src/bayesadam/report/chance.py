"""What chance alone explains: tests and ranges for the number of rows there are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from bayesadam.report.values import Array

LEVEL = 0.05
"""Below this probability something is not called chance."""


def share_range(successes: int, trials: int) -> tuple[float, float]:
    """A 95% confidence interval of a share (Wilson 1927): what the rows say about all rows there could be."""
    z = 1.959963984540054
    share, shrunk = successes / trials, 1.0 + z**2 / trials
    center = (share + 0.5 * z**2 / trials) / shrunk
    half = z / shrunk * math.sqrt(share * (1.0 - share) / trials + 0.25 * z**2 / trials**2)
    return max(0.0, center - half), min(1.0, center + half)


def binomial_p(successes: int, trials: int, chance: float) -> float:
    """Two-sided p-value: twice the probability of so many successes, or of more on the same side of the mean."""
    counts = np.arange(trials + 1)
    logs = np.array([math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in counts])
    density = np.exp(logs + counts * math.log(chance) + (trials - counts) * math.log1p(-chance))
    return min(1.0, 2.0 * min(float(density[: successes + 1].sum()), float(density[successes:].sum())))


def normal_p(value: float) -> float:
    """Two-sided p-value of a standard normal variable."""
    return math.erfc(abs(value) / math.sqrt(2.0))


def uniform_p(values: Array) -> tuple[float, float, float]:
    """Kolmogorov's test of uniform values in [0, 1], with Stephens's correction for few (1970).

    Returns:
        The p-value; where the share of the values below differs most from what it should be; and that share.
    """
    ordered = np.sort(values)
    count = len(ordered)
    above = np.arange(1, count + 1) / count - ordered
    below = ordered - np.arange(count) / count
    place = int(np.argmax(np.maximum(above, below)))
    distance = float(max(above[place], below[place]))
    share = (place + 1) / count if above[place] >= below[place] else place / count
    scaled = (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count)) * distance
    if scaled < 0.3:  # where the series has not converged, and is 1 to four digits
        return 1.0, float(ordered[place]), share
    series = sum((-1.0) ** (k - 1) * math.exp(-2.0 * (k * scaled) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, 2.0 * series)), float(ordered[place]), share


def chi_squared_p(value: float, degrees: int) -> float:
    """The probability of a larger chi-squared variable."""
    return float(torch.special.gammaincc(torch.tensor(0.5 * degrees).double(), torch.tensor(0.5 * value).double()))


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which of several hypotheses are rejected, with a probability of ``level`` of rejecting any that is true.

    Holm (1979); it holds however the tests depend on each other.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > level / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected
