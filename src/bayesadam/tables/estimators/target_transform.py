"""Transforms of a regression's targets by name: fitting, application, and the targets that they allow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import ndtr, ndtri
from torch import Tensor

from bayesadam.functional.monotone import (
    Identity,
    Log,
    Log1p,
    Monotone,
    PiecewiseLinear,
    SquareRoot,
    YeoJohnson,
)
from bayesadam.predictive import GaussianPredictive, TransformedPredictive
from bayesadam.scaling import column_scales
from bayesadam.tables.estimators.calibration import effective_rows

Floats = NDArray[np.float64]

NAMES = ("none", "log", "log1p", "sqrt", "yeo-johnson", "quantile")

POWERS = (-3.0, 5.0)
"""Bounds of the power of Yeo and Johnson's transform."""

TAIL_ROWS = 3
"""Number of rows of weight 1 beyond each outermost knot of a quantile transform."""

SMALLEST = 0.01
"""Quantile of the positive targets below which the square root is replaced by its tangent, with a finite slope at 0."""


def check(value: object) -> None:
    """Raise ``ValueError`` if ``value`` is not the name of a transform."""
    if value is not None and (not isinstance(value, str) or value not in ("auto", *NAMES)):
        raise ValueError(f"target_transform must be None or one of {('auto', *NAMES)}, got {value!r}")


def fitted(name: str, target: Floats, weight: Floats | None = None) -> Monotone:
    """Fit the transform ``name`` to targets.

    The range of the targets is extended by its own length on both sides. Outside this interval the transform continues
    along its tangents. That of Yeo and Johnson does so already where it is so flat that the range of the targets is a
    single standard deviation of their transformed values. If no target is negative, predictions are not negative
    either. A constant target is not transformed.

    Args:
        name: One of ``NAMES``.
        target: ``(N,)``.
        weight: Weights of the rows, ``(N,)``; with ``None`` they are equal.

    Raises:
        ValueError: The transform does not allow a target.
    """
    require(name, target)
    least, largest = float(target.min()), float(target.max())
    if name == "none" or least == largest:
        return Identity()
    low, high = 2.0 * least - largest, 2.0 * largest - least
    bound = {"least": _least(target)}
    if name == "log":
        return Log(high=high)
    if name == "log1p":
        return Log1p(high=high)
    if name == "sqrt":
        return SquareRoot(low=float(np.quantile(target[target > 0], SMALLEST)), high=high)
    if name == "yeo-johnson":
        (center,), (scale,) = column_scales(target[:, None], weight)
        formula = YeoJohnson(_power((target - center) / scale, weight), float(center), float(scale))
        reach = _reach(formula, target, weight)
        if formula.power < 1.0:
            high = min(high, formula.center + reach)
        else:
            low = max(low, formula.center - reach)
        return YeoJohnson(formula.power, formula.center, formula.scale, low=low, high=high, **bound)
    knots, values = _knots(target, np.ones(len(target)) if weight is None else weight / weight.mean())
    return PiecewiseLinear(knots.tolist(), values.tolist(), **bound) if len(knots) > 1 else Identity()


def require(name: str, target: Floats) -> None:
    """Raise ``ValueError`` for a target, ``(N,)``, that the transform ``name`` does not allow."""
    fine = target > 0 if name == "log" else (target >= 0) | (name not in ("log1p", "sqrt"))
    if not fine.all():
        rule = "positive" if name == "log" else "at least 0"
        raise ValueError(f"y must be {rule} for target_transform={name!r}, got {float(target[~fine][0])!r}")


def transformed(functions: Sequence[Monotone], target: Floats) -> Floats:
    """Transform every column of the targets, ``(N, K)``, by its own function."""
    if all(isinstance(function, Identity) for function in functions):
        return target
    columns = [function(torch.tensor(column)).numpy() for function, column in zip(functions, target.T, strict=True)]
    return np.stack(columns, axis=1)


def inverted(functions: Sequence[Monotone], values: Floats) -> Floats:
    """Transform every column of transformed targets, ``(N, K)``, back, and limit it to the values of its target."""
    pairs = zip(functions, values.T, strict=True)
    columns = [np.maximum(function.inverse(torch.tensor(column)).numpy(), function.least) for function, column in pairs]
    return np.stack(columns, axis=1)


def mean_log_slope(functions: Sequence[Monotone], target: Floats) -> float:
    """Return the mean over the rows of the log slopes, summed over the targets ``(N, K)``."""
    pairs = zip(functions, target.T, strict=True)
    return float(sum(function.log_slope(torch.tensor(column)).mean() for function, column in pairs))


def in_units(pred: GaussianPredictive, functions: Sequence[Monotone]) -> GaussianPredictive | TransformedPredictive:
    """Return the predictive distribution of the targets, given that of the transformed targets."""
    if not all(isinstance(function, Identity) for function in functions):
        return TransformedPredictive(pred, functions)
    least = torch.tensor([function.least for function in functions], dtype=torch.float64, device=pred.device)
    return LimitedGaussian(pred, least if pred.mean.ndim > 1 else least[0])


def limited(functions: Sequence[Monotone], target: Floats) -> list[Monotone]:
    """Return the functions with the least value 0 for targets ``(N, K)`` that are not transformed and never negative.

    Other targets that are not transformed have no least value.
    """
    pairs = zip(functions, target.T, strict=True)
    return [Identity(least=_least(column)) if isinstance(f, Identity) else f for f, column in pairs]


class LimitedGaussian(GaussianPredictive):
    """A Gaussian whose quantiles are not below the least values of the targets; its density and moments are unchanged.

    Args:
        base: The Gaussian, with epistemic variances instead of covariances.
        least: Least values, of the shape of a row's mean; minus infinity if there is none.
    """

    def __init__(self, base: GaussianPredictive, least: Tensor) -> None:
        super().__init__(base.mean, base.epistemic, base.aleatoric)
        self.least = least

    def quantile(self, probabilities: float | Sequence[float] | Tensor) -> Tensor:
        """Quantiles of the Gaussian, at least ``least``; ``(Q, N)`` or ``(Q, N, D)``, or without the first axis."""
        return super().quantile(probabilities).maximum(self.least)


def names_of(functions: Sequence[Monotone], several: bool) -> str | list[str]:
    """Return the name of the transform, or a list of names if there are several targets."""
    names = [function.name for function in functions]
    return names if several else names[0]


def _least(target: Floats) -> float:
    return 0.0 if (target >= 0).all() else -math.inf


def _power(values: Floats, weight: Floats | None) -> float:
    """Return the power for which the transformed values are closest to a Gaussian, by maximum likelihood.

    The result is that of scikit-learn's ``PowerTransformer``, with weights.
    """
    observed = torch.from_numpy(values)
    slope = np.average(np.sign(values) * np.log1p(np.abs(values)), weights=weight)

    def loss(power: float) -> float:
        transformed_values = YeoJohnson(power)(observed).numpy()
        mean = np.average(transformed_values, weights=weight)
        variance = np.average((transformed_values - mean) ** 2, weights=weight)
        return float(0.5 * np.log(max(variance, np.finfo(float).tiny)) - (power - 1.0) * slope)

    return float(minimize_scalar(loss, bounds=POWERS, method="bounded", options={"xatol": 1e-6}).x)


def _reach(formula: YeoJohnson, target: Floats, weight: Floats | None) -> float:
    """Return the distance from the centre at which the slope is the deviation of the values over the targets' range.

    With powers outside of [0, 2], the formula has an upper or a lower bound. Near it an error of the prediction, which
    is a share of that deviation, would be any number of targets' ranges.
    """
    _, (deviation,) = column_scales(formula(torch.tensor(target)).numpy()[:, None], weight)
    steepness = max(float(target.max() - target.min()) / (float(deviation) * formula.scale), 1.0)
    return formula.scale * math.expm1(min(math.log(steepness) / max(abs(formula.power - 1.0), 1e-12), 100.0))


def _knots(target: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return quantiles of the targets at evenly spaced standard normal scores, and the scores.

    The rows of a value that occurs several times have the middle of their ranks, and count as one. The number of knots
    is about twice the cubic root of the number of rows. With a knot for nearly every row, as in scikit-learn's
    ``QuantileTransformer``, the slopes between the knots, and therefore the densities, would be mostly noise.
    """
    values, place = np.unique(target, return_inverse=True)
    mass = np.bincount(place, weights=weight)
    rows = min(effective_rows(weight), len(values))
    furthest = -float(ndtri(min(TAIL_ROWS / rows, 0.25)))
    scores = np.linspace(-furthest, furthest, min(101, max(3, 2 * round(rows ** (1 / 3)) + 1)))
    quantiles = np.interp(ndtr(scores), (mass.cumsum() - 0.5 * mass) / mass.sum(), values)
    knots, place = np.unique(quantiles, return_inverse=True)
    return knots, np.bincount(place, weights=scores) / np.bincount(place)
