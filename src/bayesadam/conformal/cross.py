"""Cross-conformal intervals: every training row is used for calibration, with a model that has not seen it."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesadam.conformal.quantile import conformal_rank

AT_ONCE = 2**22
"""Maximum size of an intermediate result, which limits the number of rows that are evaluated together."""


def cross_interval(
    left_out: Tensor, target: Tensor, folds: Tensor, predictions: Tensor, *, coverage: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return the intervals of CV+, or of the jackknife+ if every fold is one row (Barber et al. 2021).

    Model ``k`` was trained without the rows of fold ``k``. With the errors ``R_i`` of the models on the rows they have
    not seen, the upper end is the ``ceil((n + 1) coverage)``-th smallest of the ``n`` numbers ``prediction_{k(i)}(x) +
    R_i``, and the lower end is the corresponding largest number with ``- R_i``. No rows have to be held out, and
    disagreement between the models about a new row widens its interval.

    If all rows are exchangeable, and a fold has no influence on its model, a new target is covered with a probability
    of at least ``1 - 2 alpha`` for the jackknife+ (Theorem 1; ``alpha = 1 - coverage``), and of at least ``1 - 2 alpha
    - sqrt(2 / n)`` for folds of equal size (Theorem 4). In practice the probability is about ``coverage``.

    Args:
        left_out: Predictions of the ``n`` training rows, each by the model that has not seen it, ``(n,)`` or ``(n,
            K)``.
        target: Targets of these rows, of the same shape.
        folds: Number of the fold of each row, from 0 to ``F - 1``, ``(n,)``.
        predictions: Predictions of the new rows by all models, ``(F, N)`` or ``(F, N, K)``.
        coverage: Probability in [0.5, 1); below 0.5 nothing is guaranteed.

    Returns:
        Lower and upper ends, ``(N,)`` or ``(N, K)`` each, in float64.

    Raises:
        ValueError: Shapes do not match, a fold has no predictions, a number is nan, the coverage is out of range, or
            there are too few rows for it.
    """
    if target.shape != left_out.shape:
        raise ValueError(f"target must be of shape {tuple(left_out.shape)}, got {tuple(target.shape)}")
    if predictions.ndim != left_out.ndim + 1 or predictions.shape[2:] != left_out.shape[1:]:
        raise ValueError(
            f"predictions must be of shape (F, N, *{tuple(left_out.shape[1:])}), got {tuple(predictions.shape)}"
        )
    errors = (target.double() - left_out.double()).abs()
    return intervals_of_errors(errors, folds, predictions.double(), coverage)


def intervals_of_errors(errors: Tensor, folds: Tensor, predictions: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
    """Return the intervals of :func:`cross_interval` from absolute errors ``(n,)`` or ``(n, K)``."""
    folds = checked_folds(folds, len(errors), len(predictions))
    if not coverage >= 0.5:
        raise ValueError(f"coverage must be in [0.5, 1) of cross-conformal intervals, got {coverage!r}")
    rank = conformal_rank(len(errors), coverage)
    for name, values in (("errors", errors), ("predictions", predictions)):
        if values.isnan().any():
            raise ValueError(f"{name} must be numbers, got nan")
    rows = max(1, AT_ONCE // errors.numel())
    parts = []
    for part in torch.split(predictions, rows, dim=1):
        centers, own = part[folds].movedim(0, -1), errors.movedim(0, -1)  # (N, n) or (N, K, n)
        lower = (centers - own).kthvalue(len(errors) + 1 - rank).values
        parts.append((lower, (centers + own).kthvalue(rank).values))
    lower, upper = (torch.cat(ends) for ends in zip(*parts, strict=True))
    return lower, upper


def checked_folds(folds: Tensor, rows: int, models: int) -> Tensor:
    """Return the folds as indices, or raise ``ValueError`` unless every row has a fold, and every fold a model."""
    if folds.shape != (rows,) or folds.is_floating_point() or folds.is_complex():
        raise ValueError(f"folds must be whole numbers of shape {(rows,)}, got {folds.dtype} {tuple(folds.shape)}")
    indices = folds.long()  # as an index, uint8 would be a mask
    if rows and not (0 <= indices.min() and indices.max() < models):
        raise ValueError(f"folds must be in [0, {models}), got {int(indices.min())} to {int(indices.max())}")
    return indices
