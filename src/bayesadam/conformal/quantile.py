"""The quantile of scores on which conformal prediction is based."""

from __future__ import annotations

import math

from torch import Tensor

ROUNDING = 1e-12
"""Tolerance of the ceiling: ``100 * 0.55`` is slightly more than 55 in floating point, and its ceiling must be 55."""


def conformal_quantile(scores: Tensor, coverage: float) -> Tensor:
    """Return the ``ceil((n + 1) coverage)``-th smallest of ``n`` scores.

    The score of a further row that is exchangeable with these is at most this number with a probability of at least
    ``coverage`` (Vovk et al. 2005; Lei et al. 2018, Theorem 2.2). The ``n + 1`` counts the further row; the ordinary
    quantile of the ``n`` scores would cover too little.

    Args:
        scores: ``(n,)``, or ``(n, ...)`` for several scores of every row; infinite scores are allowed.
        coverage: Probability in (0, 1).

    Returns:
        The quantile, without the first axis.

    Raises:
        ValueError: The coverage is out of range, a score is nan, or the coverage is above ``n / (n + 1)``, for which no
            finite number is large enough.
    """
    rank = conformal_rank(len(scores), coverage)
    if scores.isnan().any():
        raise ValueError("scores must be numbers, got nan")
    return scores.sort(0).values[rank - 1]


def check_coverage(coverage: float) -> None:
    """Raise ``ValueError`` for a probability that is not in (0, 1)."""
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be in (0, 1), got {coverage!r}")


def conformal_rank(rows: int, coverage: float) -> int:
    """Return ``ceil((n + 1) coverage)``, or raise ``ValueError`` if that is more than the ``n`` rows."""
    check_coverage(coverage)
    rank = math.ceil((rows + 1) * coverage - ROUNDING)
    if rank > rows:
        raise ValueError(
            f"coverage must be at most n / (n + 1) = {rows / (rows + 1):.4g} with {rows} calibration rows, "
            f"got {coverage!r}: the interval would be infinite"
        )
    return rank
