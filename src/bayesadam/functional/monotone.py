"""Strictly increasing functions of a number, with inverses and slopes for the density of a transformed variable.

If ``f(y)`` has the density ``p``, then ``y`` has the density ``p(f(y)) f'(y)``. Every function is defined by a formula
between two ends, ``low`` and ``high``, and continues beyond them along its tangents. Inverses therefore grow linearly
far from the data, where those of logarithms grow exponentially and those of power transforms may not exist, and all
moments of a transformed Gaussian are finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

__all__ = ["Identity", "Log", "Log1p", "Monotone", "PiecewiseLinear", "SquareRoot", "YeoJohnson", "monotone"]


class Monotone:
    """A strictly increasing function that is applied element by element in float64.

    A subclass defines the formula by ``_value``, ``_inverse`` and ``_log_slope``.

    Args:
        low: Lower end of the formula; below it the function is its tangent.
        high: Upper end of the formula; above it the function is its tangent.
        least: The smallest value of the variable, for example 0 if it is never negative.

    Raises:
        ValueError: ``high`` is not above ``low``.
    """

    name: ClassVar[str]

    def __init__(self, *, low: float = -math.inf, high: float = math.inf, least: float = -math.inf) -> None:
        if not low < high:
            raise ValueError(f"high must be above low, {low!r}, got {high!r}")
        self.low, self.high, self.least = float(low), float(high), float(least)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.numbers().items())})"

    def __call__(self, value: Tensor) -> Tensor:
        """The function at ``value``."""
        value = value.double()
        inside = value.clamp(self.low, self.high)
        tail = (value - inside) * self._log_slope(inside).exp()
        return torch.where(value == inside, self._value(inside), self._value(inside) + tail)

    def inverse(self, value: Tensor) -> Tensor:
        """Return the point at which the function has this value."""
        value = value.double()
        ends = torch.tensor([self.low, self.high], dtype=torch.float64, device=value.device)
        inside = torch.clamp(value, *self._value(ends))
        at = self._inverse(inside).clamp(self.low, self.high)
        tail = (value - inside) * (-self._log_slope(at)).exp()
        return torch.where(value == inside, at, at + tail)

    def log_slope(self, value: Tensor) -> Tensor:
        """The logarithm of the derivative at ``value``."""
        return self._log_slope(value.double().clamp(self.low, self.high))

    def numbers(self) -> dict[str, Any]:
        """Return the arguments of the constructor that are finite numbers."""
        ends = {"low": self.low, "high": self.high, "least": self.least}
        return {name: value for name, value in ends.items() if math.isfinite(value)}

    def _value(self, value: Tensor) -> Tensor:
        raise NotImplementedError

    def _inverse(self, value: Tensor) -> Tensor:
        raise NotImplementedError

    def _log_slope(self, value: Tensor) -> Tensor:
        raise NotImplementedError


class Identity(Monotone):
    """The number itself."""

    name = "none"

    def _value(self, value: Tensor) -> Tensor:
        return value

    def _inverse(self, value: Tensor) -> Tensor:
        return value

    def _log_slope(self, value: Tensor) -> Tensor:
        return torch.zeros_like(value)


class _NotNegative(Monotone):
    """A function of numbers that are not negative: its formula begins at 0, and so does the variable."""

    def __init__(self, **ends: float) -> None:
        super().__init__(**{"low": 0.0, "least": 0.0, **ends})


class Log(_NotNegative):
    """``log y``, of positive numbers."""

    name = "log"

    def _value(self, value: Tensor) -> Tensor:
        return value.log()

    def _inverse(self, value: Tensor) -> Tensor:
        return value.exp()

    def _log_slope(self, value: Tensor) -> Tensor:
        return -value.log()


class Log1p(_NotNegative):
    """``log(1 + y)``, of numbers that are not negative."""

    name = "log1p"

    def _value(self, value: Tensor) -> Tensor:
        return value.log1p()

    def _inverse(self, value: Tensor) -> Tensor:
        return value.expm1()

    def _log_slope(self, value: Tensor) -> Tensor:
        return -value.log1p()


class SquareRoot(_NotNegative):
    """The square root, of numbers that are not negative; its slope is finite where ``low`` is positive."""

    name = "sqrt"

    def _value(self, value: Tensor) -> Tensor:
        return value.sqrt()

    def _inverse(self, value: Tensor) -> Tensor:
        return value.square()

    def _log_slope(self, value: Tensor) -> Tensor:
        return -0.5 * value.log() - math.log(2.0)


class YeoJohnson(Monotone):
    """The power transform of Yeo and Johnson (2000), eq. 2.1, of ``u = (y - center) / scale``.

    It is ``((1 + u)^power - 1) / power`` for ``u >= 0`` and ``-((1 - u)^(2 - power) - 1) / (2 - power)`` below, with
    logarithms where an exponent is 0.

    Args:
        power: Power; 1 does not change ``u``, smaller powers compress large values, and larger powers compress small
            values.
        center: Centre, in the units of the variable.
        scale: Scale, positive, in the units of the variable.
        ends: Arguments of :class:`Monotone`.

    Raises:
        ValueError: The scale is not positive.
    """

    name = "yeo-johnson"

    def __init__(self, power: float, center: float = 0.0, scale: float = 1.0, **ends: float) -> None:
        super().__init__(**ends)
        if not scale > 0:
            raise ValueError(f"scale must be positive, got {scale!r}")
        self.power, self.center, self.scale = float(power), float(center), float(scale)

    def numbers(self) -> dict[str, Any]:
        """As in the base class."""
        return {"power": self.power, "center": self.center, "scale": self.scale, **super().numbers()}

    def _value(self, value: Tensor) -> Tensor:
        u = (value - self.center) / self.scale
        logs = u.abs().log1p()
        return torch.where(u >= 0, _power(logs, self.power), -_power(logs, 2.0 - self.power))

    def _inverse(self, value: Tensor) -> Tensor:
        size = torch.where(value >= 0, _inverse_power(value, self.power), -_inverse_power(-value, 2.0 - self.power))
        return self.center + self.scale * size

    def _log_slope(self, value: Tensor) -> Tensor:
        u = (value - self.center) / self.scale
        return (self.power - 1.0) * u.sign() * u.abs().log1p() - math.log(self.scale)


class PiecewiseLinear(Monotone):
    """Linear between knots, and beyond them as in the first and the last piece.

    Args:
        knots: At least two values of the variable, strictly increasing.
        values: Values of the function at the knots, strictly increasing.
        ends: Arguments of :class:`Monotone`.

    Raises:
        ValueError: Knots or values do not increase, or differ in number.
    """

    name = "quantile"

    def __init__(self, knots: Sequence[float], values: Sequence[float], **ends: float) -> None:
        super().__init__(**ends)
        self.knots = torch.tensor(list(knots), dtype=torch.float64)
        self.values = torch.tensor(list(values), dtype=torch.float64)
        for name, given in (("knots", self.knots), ("values", self.values)):
            if given.ndim != 1 or len(given) < 2 or not (given.isfinite().all() and (given.diff() > 0).all()):
                raise ValueError(f"{name} must be two or more increasing numbers, got {given.tolist()!r}")
        if len(self.knots) != len(self.values):
            raise ValueError(f"values must be as many as the knots, {len(self.knots)}, got {len(self.values)}")

    def numbers(self) -> dict[str, Any]:
        """As in the base class."""
        return {"knots": self.knots.tolist(), "values": self.values.tolist(), **super().numbers()}

    def _value(self, value: Tensor) -> Tensor:
        return _line(value, self.knots.to(value), self.values.to(value))

    def _inverse(self, value: Tensor) -> Tensor:
        return _line(value, self.values.to(value), self.knots.to(value))

    def _log_slope(self, value: Tensor) -> Tensor:
        knots, values = self.knots.to(value), self.values.to(value)
        return (values.diff() / knots.diff()).log()[_piece(value, knots)]


_KINDS: dict[str, type[Monotone]] = {
    kind.name: kind for kind in (Identity, Log, Log1p, SquareRoot, YeoJohnson, PiecewiseLinear)
}


def monotone(name: str, numbers: Mapping[str, Any]) -> Monotone:
    """Create the function with a name and :meth:`Monotone.numbers`.

    Raises:
        ValueError: There is no such function, or the numbers are invalid.
    """
    if name not in _KINDS:
        raise ValueError(f"name must be one of {tuple(_KINDS)}, got {name!r}")
    return _KINDS[name](**numbers)


def _power(logs: Tensor, exponent: float) -> Tensor:
    """``(exp(logs)^exponent - 1) / exponent``, and its limit."""
    return logs if abs(exponent) < 1e-12 else (exponent * logs).expm1() / exponent


def _inverse_power(value: Tensor, exponent: float) -> Tensor:
    return value.expm1() if abs(exponent) < 1e-12 else ((exponent * value).clamp_min(-1.0).log1p() / exponent).expm1()


def _piece(value: Tensor, knots: Tensor) -> Tensor:
    return (torch.searchsorted(knots, value.contiguous(), right=True) - 1).clamp(0, len(knots) - 2)


def _line(value: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    piece = _piece(value, knots)
    share = (value - knots[piece]) / knots.diff()[piece]
    return values[piece] + share * values.diff()[piece]
