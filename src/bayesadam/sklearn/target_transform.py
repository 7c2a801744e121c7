"""Transforms of a regression's targets by name: what is fitted of them, and which targets they allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import ndtr, ndtri

from bayesadam.functional.monotone import (
    Identity,
    Log,
    Log1p,
    Monotone,
    PiecewiseLinear,
    SquareRoot,
    YeoJohnson,
    monotone,
)
from bayesadam.predictive import GaussianPredictive
from bayesadam.predictive.transformed import TransformedPredictive
from bayesadam.scaling import column_scales

Floats = NDArray[np.float64]

NAMES = ("none", "log", "log1p", "sqrt", "yeo-johnson", "quantile")

POWERS = (-3.0, 5.0)
"""Between which the power of Yeo and Johnson is searched."""

TAIL_ROWS = 3
"""Rows of weight 1 beyond the outermost knots of a quantile transform."""

SMALLEST = 0.01
"""The square root is a tangent below this quantile of the positive targets: its slope at 0 is then finite."""


def check(value: object) -> None:
    """Raise ``ValueError`` if something is not the name of a transform."""
    if value is not None and (not isinstance(value, str) or value not in ("auto", *NAMES)):
        raise ValueError(f"target_transform must be None or one of {('auto', *NAMES)}, got {value!r}")


def fitted(name: str, target: Floats, weight: Floats | None = None) -> Monotone:
    """The transform of a name, its numbers learned from the targets.

    Beyond the range of the targets, extended by the range itself on both sides, it continues along its tangents.
    Where no target is negative, the transformed variable is taken to have no negative values. A constant target is left
    as it is.

    Args:
        name: One of ``NAMES``.
        target: ``(N,)``.
        weight: Of the rows, ``(N,)``; ``None``: all alike.

    Raises:
        ValueError: A target that the transform does not allow.
    """
    require(name, target)
    least, largest = float(target.min()), float(target.max())
    if name == "none" or least == largest:
        return Identity()
    low, high = 2.0 * least - largest, 2.0 * largest - least
    bound = {"least": 0.0} if least >= 0 else {}
    if name == "log":
        return Log(high=high)
    if name == "log1p":
        return Log1p(high=high)
    if name == "sqrt":
        return SquareRoot(low=float(np.quantile(target[target > 0], SMALLEST)), high=high)
    if name == "yeo-johnson":
        (center,), (scale,) = column_scales(target[:, None], weight)
        power = _power((target - center) / scale, weight)
        return YeoJohnson(power, float(center), float(scale), low=low, high=high, **bound)
    knots, values = _knots(target, np.ones(len(target)) if weight is None else weight / weight.mean())
    return PiecewiseLinear(knots.tolist(), values.tolist(), **bound) if len(knots) > 1 else Identity()


def require(name: str, target: Floats, least: float | None = None) -> None:
    """Raise ``ValueError`` for a target that a transform does not allow.

    Args:
        name: Of the transform.
        target: ``(N,)``.
        least: What the transform has learned to be the least value; ``None``: nothing yet.
    """
    if least is None:
        least = 0.0 if name in ("log", "log1p", "sqrt") else -math.inf
    fine = target > 0 if name == "log" else target >= least
    if not fine.all():
        rule = "positive" if name == "log" else "at least 0"
        raise ValueError(f"y must be {rule} for target_transform={name!r}, got {float(target[~fine][0])!r}")


def transformed(functions: Sequence[Monotone], target: Floats) -> Floats:
    """Every column of the targets, ``(N, K)``, by its own function."""
    if all(isinstance(function, Identity) for function in functions):
        return target
    columns = [function(torch.tensor(own)).numpy() for function, own in zip(functions, target.T, strict=True)]
    return np.stack(columns, axis=1)


def inverted(functions: Sequence[Monotone], values: Floats) -> Floats:
    """Every column of transformed targets, ``(N, K)``, transformed back; at least the least value of its target."""
    pairs = zip(functions, values.T, strict=True)
    columns = [np.maximum(function.inverse(torch.tensor(own)).numpy(), function.least) for function, own in pairs]
    return np.stack(columns, axis=1)


def mean_log_slope(functions: Sequence[Monotone], target: Floats) -> float:
    """Mean over the rows of the log slopes, summed over the targets ``(N, K)``."""
    pairs = zip(functions, target.T, strict=True)
    return float(sum(function.log_slope(torch.tensor(own)).mean() for function, own in pairs))


def in_units(pred: GaussianPredictive, functions: Sequence[Monotone]) -> GaussianPredictive | TransformedPredictive:
    """The predictive distribution in the units of the targets, from that of the transformed ones."""
    if all(isinstance(function, Identity) for function in functions):
        return pred
    return TransformedPredictive(pred, functions)


def told(functions: Sequence[Monotone], several: bool) -> str | list[str]:
    """Names of the transforms, one for each target where there are several."""
    names = [function.name for function in functions]
    return names if several else names[0]


def record(function: Monotone) -> dict[str, Any]:
    """What JSON takes of a function; :func:`from_record` reads it."""
    return {"name": function.name, **function.numbers()}


def from_record(told: dict[str, Any]) -> Monotone:
    """The function that :func:`record` describes.

    Raises:
        ValueError: It describes none.
    """
    numbers = {name: value for name, value in told.items() if name != "name"}
    for value in np.hstack([np.ravel(value) for value in numbers.values()] or [np.zeros(0)]):
        if not isinstance(value, float | int | np.number) or not math.isfinite(value):
            raise ValueError(f"transform must be of finite numbers, got {told!r}")
    return monotone(told["name"], numbers)


def _power(values: Floats, weight: Floats | None) -> float:
    """The power for which the transformed values are most like a Gaussian, by maximum likelihood.

    It is that of scikit-learn's ``PowerTransformer``, with weights.
    """
    known = torch.from_numpy(values)
    slope = np.average(np.sign(values) * np.log1p(np.abs(values)), weights=weight)

    def loss(power: float) -> float:
        found = YeoJohnson(power)(known).numpy()
        mean = np.average(found, weights=weight)
        variance = np.average((found - mean) ** 2, weights=weight)
        return float(0.5 * np.log(max(variance, np.finfo(float).tiny)) - (power - 1.0) * slope)

    return float(minimize_scalar(loss, bounds=POWERS, method="bounded", options={"xatol": 1e-6}).x)


def _knots(target: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Quantiles of the targets at evenly spaced standard normal scores, and the scores; equal quantiles are one knot.

    There are about twice as many as the cubic root of the number of rows. With a knot for nearly every row, as in
    scikit-learn's ``QuantileTransformer``, the slopes between them, and so the densities, would be mostly noise.
    """
    order = np.argsort(target, kind="stable")
    share = (weight[order].cumsum() - 0.5 * weight[order]) / weight.sum()
    rows = float(weight.sum() ** 2 / (weight**2).sum())
    furthest = -float(ndtri(min(TAIL_ROWS / rows, 0.25)))
    scores = np.linspace(-furthest, furthest, min(101, max(3, 2 * round(rows ** (1 / 3)) + 1)))
    quantiles = np.interp(ndtr(scores), share, target[order])
    knots, place = np.unique(quantiles, return_inverse=True)
    return knots, np.bincount(place, weights=scores) / np.bincount(place)
