"""Sets of classes that contain the actual class with a guaranteed probability: adaptive prediction sets (APS)."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesadam.conformal.cross import checked_folds
from bayesadam.conformal.quantile import conformal_quantile, conformal_rank
from bayesadam.predictive.result import ClassificationPredictive


def prediction_set(
    calibration: ClassificationPredictive | Tensor,
    labels: Tensor,
    prediction: ClassificationPredictive | Tensor,
    *,
    coverage: float = 0.95,
    randomized: bool = False,
    seed: int = 0,
) -> Tensor:
    """Return adaptive prediction sets (Romano et al. 2020), which are small where the model is certain.

    A set contains the most probable classes, up to the first with which their probabilities sum to ``tau`` or more.
    With calibrated probabilities ``tau`` would be ``coverage``; here it is the :func:`conformal_quantile` of the sums
    with which the sets of the calibration rows would just contain their actual classes. The actual class of a new row
    is in the set with a probability of at least ``coverage``, even if the probabilities are wrong (Romano et al. 2020,
    Theorem 1).

    Args:
        calibration: Predictions of ``n`` rows that the model was not trained on: a predictive distribution, or
            probabilities ``(n, C)``.
        labels: Indices of the actual classes of these rows, ``(n,)``.
        prediction: Predictions of the new rows, of the same kind and for the same classes.
        coverage: Probability in (0, 1).
        randomized: Whether to omit the last class of a set at random, with the probability that makes the coverage
            exact instead of conservative: it is then at most ``coverage + 1 / (n + 1)``. The sets depend on the seed
            and may be empty. They are usually not smaller on average, because the scores of the calibration rows, and
            therefore ``tau``, are larger as well. Without this option, every set contains the most probable class.
        seed: Seed of these random numbers.

    Returns:
        Whether a class is in the set, ``(N, C)`` bool.

    Raises:
        ValueError: Shapes or numbers of classes do not match, labels are out of range, probabilities are nan, or there
            are too few rows for the coverage.
    """
    known, new = _probs(calibration), _probs(prediction)
    if new.shape[1] != known.shape[1]:
        raise ValueError(f"prediction must be of shape (N, {known.shape[1]}), got {tuple(new.shape)}")
    draws = uniforms(len(known) + len(new), seed, known.device) if randomized else None
    own = _own(scores(known, None if draws is None else draws[: len(known)]), labels)
    tau = conformal_quantile(own, coverage)
    return scores(new, None if draws is None else draws[len(known) :]) <= tau


def cross_prediction_set(
    left_out: Tensor,
    labels: Tensor,
    folds: Tensor,
    predictions: Tensor,
    *,
    coverage: float = 0.95,
    randomized: bool = False,
    seed: int = 0,
) -> Tensor:
    """Return adaptive prediction sets by CV+, which uses every training row, with a model that has not seen it.

    Model ``k`` was trained without the rows of fold ``k``. For every training row, its model gives a score
    (:func:`scores`) to the actual class of this row, and to each class of a new row. A class is in the set unless its
    score is above that of the training row for too many training rows (Romano et al. 2020). The guarantee is that of
    :func:`cross_interval`: at least ``1 - 2 alpha - sqrt(2 / n)``, with ``alpha = 1 - coverage`` (Theorem 2).

    Args:
        left_out: Probabilities of the ``n`` training rows, each by the model that has not seen it, ``(n, C)``.
        labels: Indices of the actual classes of these rows, ``(n,)``.
        folds: Number of the fold of each row, from 0 to ``F - 1``, ``(n,)``.
        predictions: Probabilities of the new rows by all models, ``(F, N, C)``.
        coverage: Probability in [0.5, 1); below 0.5 nothing is guaranteed.
        randomized: Whether to randomise the sets, as for :func:`prediction_set`.
        seed: Seed of the random numbers.

    Returns:
        Whether a class is in the set, ``(N, C)`` bool.

    Raises:
        ValueError: Shapes do not match, a fold has no predictions, labels are out of range, probabilities are nan, the
            coverage is out of range, or there are too few rows for it.
    """
    known, new = _probs(left_out), predictions.double()
    if new.ndim != 3 or new.shape[2] != known.shape[1]:
        raise ValueError(f"predictions must be of shape (F, N, {known.shape[1]}), got {tuple(new.shape)}")
    draws = uniforms(len(known) + new.shape[1], seed, known.device) if randomized else None
    own = _own(scores(known, None if draws is None else draws[: len(known)]), labels)
    return sets_of_scores(own, folds, scores(new, None if draws is None else draws[len(known) :]), coverage)


def sets_of_scores(own: Tensor, folds: Tensor, new: Tensor, coverage: float) -> Tensor:
    """Return the sets of :func:`cross_prediction_set` from scores of training rows, ``(n,)``, and of new rows."""
    folds = checked_folds(folds, len(own), len(new))
    if not coverage >= 0.5:
        raise ValueError(f"coverage must be in [0.5, 1) of cross-conformal sets, got {coverage!r}")
    rank = conformal_rank(len(own), coverage)
    smaller = torch.zeros(new.shape[1:], dtype=torch.int64, device=new.device)
    for fold, values in enumerate(new):
        smaller += torch.searchsorted(own[folds == fold].sort().values, values.contiguous())
    return smaller < rank


def scores(probs: Tensor, draws: Tensor | None = None) -> Tensor:
    """Return the smallest ``tau`` for which each class is in the set, in the shape of ``probs``.

    This is the sum of all larger probabilities. With random numbers ``u`` in ``draws``, ``(1 - u)`` times the
    probability of the class is added, so that the last class of a set is omitted if ``u`` is small.

    Args:
        probs: Probabilities ``(..., N, C)``.
        draws: Random numbers ``(N,)``, uniform in [0, 1). ``None`` means ``u = 1``, without randomisation.
    """
    if probs.isnan().any():
        raise ValueError("probabilities must be numbers, got nan")
    sorted_, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    before = sorted_.cumsum(-1) - sorted_
    before[..., 0] = 0.0
    if draws is not None:
        before = before + (1.0 - draws).unsqueeze(-1) * sorted_
    return torch.empty_like(before).scatter_(-1, order, before)


def uniforms(count: int, seed: int, device: torch.device) -> Tensor:
    """Return random numbers in [0, 1), ``(count,)`` float64, the same on every device."""
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)


def _probs(prediction: ClassificationPredictive | Tensor) -> Tensor:
    probs = prediction.double() if isinstance(prediction, Tensor) else prediction.class_probs.double()
    if probs.ndim != 2 or probs.shape[1] < 2:
        raise ValueError(f"probabilities must be of shape (N, C) with at least 2 classes, got {tuple(probs.shape)}")
    return probs


def _own(values: Tensor, labels: Tensor) -> Tensor:
    """Return the values of the actual classes, ``(n,)``."""
    if labels.shape != values.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"labels must be whole numbers of shape {tuple(values.shape[:1])}, got {labels.dtype} {tuple(labels.shape)}"
        )
    if len(labels) and not (0 <= labels.min() and labels.max() < values.shape[1]):
        raise ValueError(f"labels must be in [0, {values.shape[1]}), got {int(labels.min())} to {int(labels.max())}")
    return values.gather(1, labels.long().unsqueeze(1))[:, 0]
