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
        prediction: Predictions of the new rows, of the same kind.
        coverage: Probability in (0, 1).

    Returns:
        Lower and upper ends, ``(N,)`` or ``(N, K)`` each, in the units of the targets and float64.

    Raises:
        ValueError: The targets have another shape, a number is nan, or there are too few rows for the coverage.
    """
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
        prediction: Predictive distribution of the new rows.
        coverage: Probability in (0, 1).

    Returns:
        Lower and upper ends, ``(N,)`` or ``(N, K)`` each, in the units of the targets and float64.

    Raises:
        ValueError: The targets have another shape, a number is nan, a standard deviation is 0, or there are too few
            rows for the coverage.
    """
    width = conformal_quantile(scaled_errors(calibration, target), coverage)
    return around(prediction, width * deviations(prediction))


def absolute_errors(prediction: Distribution | Tensor, target: Tensor) -> Tensor:
    """Return ``|y - mean|`` in float64, for transformed targets if there is a transform."""
    mean = prediction if isinstance(prediction, Tensor) else prediction.mean
    if target.shape != mean.shape:
        raise ValueError(f"target must be of shape {tuple(mean.shape)}, got {tuple(target.shape)}")
    if isinstance(prediction, TransformedPredictive):
        return (prediction.transform(target) - prediction.base.mean.double()).abs()
    return (target.double() - mean.double()).abs()


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
    if isinstance(prediction, TransformedPredictive):
        mean = prediction.base.mean.double()
        return prediction.inverse(mean - width), prediction.inverse(mean + width)
    mean = (prediction if isinstance(prediction, Tensor) else prediction.mean).double()
    return mean - width, mean + width
