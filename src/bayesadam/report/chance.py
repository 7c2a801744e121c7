"""Tests and confidence intervals, which show what chance alone explains for the number of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from bayesadam.report.values import Array

LEVEL = 0.05
"""Probability below which a difference is not attributed to chance."""


def share_range(successes: int, trials: int) -> tuple[float, float]:
    """Return a 95% confidence interval of a share (Wilson 1927)."""
    z = 1.959963984540054
    share, shrunk = successes / trials, 1.0 + z**2 / trials
    center = (share + 0.5 * z**2 / trials) / shrunk
    half = z / shrunk * math.sqrt(share * (1.0 - share) / trials + 0.25 * z**2 / trials**2)
    return max(0.0, center - half), min(1.0, center + half)


def binomial_p(successes: int, trials: int, chance: float) -> float:
    """Return a two-sided p-value: twice the probability of a result at least as far on the same side of the mean."""
    counts = np.arange(trials + 1)
    logs = np.array([math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in counts])
    density = np.exp(logs + counts * math.log(chance) + (trials - counts) * math.log1p(-chance))
    return min(1.0, 2.0 * min(float(density[: successes + 1].sum()), float(density[successes:].sum())))


def normal_p(value: float) -> float:
    """Return the two-sided p-value of a standard normal variable."""
    return math.erfc(abs(value) / math.sqrt(2.0))


def uniform_p(values: Array) -> tuple[float, float, float]:
    """Test whether values are uniform in [0, 1] by Kolmogorov's test with the correction of Stephens (1970).

    Returns:
        The p-value, the point at which the share of the values below it differs most from the expected one, and this
        share.
    """
    ordered = np.sort(values)
    count = len(ordered)
    above = np.arange(1, count + 1) / count - ordered
    below = ordered - np.arange(count) / count
    place = int(np.argmax(np.maximum(above, below)))
    distance = float(max(above[place], below[place]))
    share = (place + 1) / count if above[place] >= below[place] else place / count
    scaled = (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count)) * distance
    if scaled < 0.3:  # the series does not converge here, but its value is 1 to four digits
        return 1.0, float(ordered[place]), share
    series = sum((-1.0) ** (k - 1) * math.exp(-2.0 * (k * scaled) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, 2.0 * series)), float(ordered[place]), share


def chi_squared_p(value: float, degrees: int) -> float:
    """Return the probability of a larger chi-squared variable."""
    return float(torch.special.gammaincc(torch.tensor(0.5 * degrees).double(), torch.tensor(0.5 * value).double()))


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Return which of several hypotheses are rejected, if any true one may be rejected with a probability of ``level``.

    The procedure (Holm 1979) is valid for any dependence between the tests.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > level / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected
