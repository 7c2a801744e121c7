"""Split conformal intervals, whose width follows from the errors on rows that the model was not trained on."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bayesadam.conformal.quantile import conformal_quantile
from bayesadam.predictive.mixture import MixturePredictive
from bayesadam.predictive.result import RegressionPredictive
from bayesadam.predictive.transformed import TransformedPredictive

Distribution = RegressionPredictive | MixturePredictive | TransformedPredictive


def split_interval(
    calibration: Distribution | Tensor, target: Tensor, prediction: Distribution | Tensor, *, coverage: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return intervals of one width for all rows: the predicted mean plus and minus a quantile of absolute errors.

    The width is the :func:`conformal_quantile` of the absolute errors on calibration rows (Lei et al. 2018, Algorithm
    2). A new target is covered with a probability of at least ``coverage``, and of at most ``coverage + 1 / (n + 1)``
    if errors do not tie (Theorem 2.2).

    Args:
        calibration: Predictions of ``n`` rows that the model was not trained on: a predictive distribution, or means
            ``(n,)`` or ``(n, K)``. With a :class:`bayesadam.predictive.TransformedPredictive`, the errors are those of
            the transformed targets, and the intervals are transformed back.
        target: Targets of these rows, of the same shape.
        prediction: Predictions of the new rows, of the same kind, with the same transform and number of targets.
        coverage: Probability in (0, 1).

    Returns:
        Lower and upper ends, ``(N,)`` or ``(N, K)`` each, in the units of the targets and float64.

    Raises:
        ValueError: The targets have another shape, the predictions differ in their transform or number of targets, a
            number is nan, or there are too few rows for the coverage.
    """
    _check_alike(calibration, prediction)
    width = conformal_quantile(absolute_errors(calibration, target), coverage)
    return around(prediction, width)


def adaptive_interval(
    calibration: Distribution, target: Tensor, prediction: Distribution, *, coverage: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return intervals whose width is proportional to the predicted standard deviation of each row.

    The :func:`conformal_quantile` of ``|y - mean| / std`` replaces the factor 1.96 of a Gaussian's 95% interval (Lei et
    al. 2018, section 5.2, with the predictive standard deviation). The guarantee is that of :func:`split_interval`,
    even if the standard deviations are wrong. The better they are, the more similar is the coverage of different groups
    of rows.

    Args:
        calibration: Predictive distribution of ``n`` rows that the model was not trained on.
        target: Targets of these rows, ``(n,)`` or ``(n, K)``.
        prediction: Predictive distribution of the new rows, with the same transform and number of targets.
        coverage: Probability in (0, 1).

    Returns:
        Lower and upper ends, ``(N,)`` or ``(N, K)`` each, in the units of the targets and float64.

    Raises:
        ValueError: The targets have another shape, the predictions differ in their transform or number of targets, a
            number is nan, a standard deviation is 0, or there are too few rows for the coverage.
    """
    _check_alike(calibration, prediction)
    width = conformal_quantile(scaled_errors(calibration, target), coverage)
    return around(prediction, width * deviations(prediction))


def absolute_errors(prediction: Distribution | Tensor, target: Tensor) -> Tensor:
    """Return ``|y - mean|`` in float64, for transformed targets if there is a transform."""
    mean = _center(prediction)
    if target.shape != mean.shape:
        raise ValueError(f"target must be of shape {tuple(mean.shape)}, got {tuple(target.shape)}")
    known = prediction.transform(target) if isinstance(prediction, TransformedPredictive) else target.double()
    return (known - mean).abs()


def scaled_errors(prediction: Distribution, target: Tensor) -> Tensor:
    """Return ``|y - mean| / std`` in float64, for transformed targets if there is a transform."""
    return absolute_errors(prediction, target) / deviations(prediction)


def deviations(prediction: Distribution) -> Tensor:
    """Return predicted standard deviations in float64, for transformed targets if there is a transform."""
    base: Any = prediction.base if isinstance(prediction, TransformedPredictive) else prediction
    std: Tensor = base.variance.double().sqrt()
    if not (std > 0).all():
        raise ValueError(f"standard deviations must be positive, got {float(std[~(std > 0)][0])!r}")
    return std


def around(prediction: Distribution | Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ends ``mean - width`` and ``mean + width``, transformed back if there is a transform."""
    mean = _center(prediction)
    if isinstance(prediction, TransformedPredictive):
        return prediction.inverse(mean - width), prediction.inverse(mean + width)
    return mean - width, mean + width


def _center(prediction: Distribution | Tensor) -> Tensor:
    """Return the predicted means in float64, of transformed targets if there is a transform."""
    base = prediction.base if isinstance(prediction, TransformedPredictive) else prediction
    return (base if isinstance(base, Tensor) else base.mean).double()


def _check_alike(calibration: Distribution | Tensor, prediction: Distribution | Tensor) -> None:
    """Raise ``ValueError`` unless errors of one prediction are comparable with those of another, which has no NaN."""
    known, new = _transform(calibration), _transform(prediction)
    if known != new:
        raise ValueError(f"prediction must have the transform of calibration, {known}, got {new}")
    known_mean, mean = _center(calibration), _center(prediction)
    if mean.ndim != known_mean.ndim or mean.shape[1:] != known_mean.shape[1:]:
        raise ValueError(
            f"prediction must be of shape (N, *{tuple(known_mean.shape[1:])}) as calibration, got {tuple(mean.shape)}"
        )
    if mean.isnan().any():
        raise ValueError("prediction must be numbers, got nan")


def _transform(prediction: Distribution | Tensor) -> str:
    """Return the functions of a transform with all their numbers, or ``"none"``."""
    return repr(prediction.functions) if isinstance(prediction, TransformedPredictive) else "none"
