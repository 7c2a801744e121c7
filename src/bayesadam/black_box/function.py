"""The user's function, called with points of the type of ``x0``; its values are checked and counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam.checks import check


class Function:
    """Calls a function at points ``(batch, n)`` in float64, and counts the points.

    Args:
        f: Function from a point like ``x0`` to a number; with ``vectorized`` from ``(batch, *x0.shape)`` to
            ``(batch,)``.
        x0: A tensor, an array, or a value that NumPy converts to an array.
        vectorized: Whether ``f`` takes many points at once.
        nonfinite: ``"raise"`` an error for a value that is not finite, or ``"skip"``, which makes it infinite.

    Attributes:
        start: ``x0`` flattened, float64 on the CPU.
        dtype: Type of the numbers of the points that the function is given.
        nfev: Number of points that were evaluated.

    Raises:
        ValueError: ``x0`` is empty, not real or not finite.
    """

    def __init__(self, f: Callable[[Any], Any], x0: Any, *, vectorized: bool, nonfinite: str) -> None:
        self._f, self._vectorized, self._nonfinite = f, vectorized, nonfinite
        self._numpy = not isinstance(x0, Tensor)
        try:
            like = torch.as_tensor(np.array(x0) if self._numpy else x0).detach()
        except (TypeError, ValueError):
            like = torch.tensor([], dtype=torch.float64)
        if like.numel() == 0 or like.is_complex() or not like.isfinite().all():
            raise ValueError(f"x0 must be finite, real numbers, got {x0!r}")
        if not like.is_floating_point():
            like = like.to(torch.float64 if self._numpy else torch.get_default_dtype())
        self._like, self.dtype = like, like.dtype
        self.start = like.flatten().to("cpu", torch.float64, copy=True)
        self.nfev = 0

    def shown(self, flat: Tensor, shape: tuple[int, ...] | None = None) -> Any:
        """Convert values in float64 to the type and dtype of ``x0``, by default in its shape."""
        shape = tuple(self._like.shape) if shape is None else shape
        found = flat.reshape(shape).to(self._like.device, self._like.dtype, copy=True)
        return found.numpy() if self._numpy else found

    def __call__(self, points: Tensor) -> Tensor:
        """Values ``(batch,)`` in float64.

        Raises:
            ValueError: The function did not return one number for each point.
            FloatingPointError: A value is not finite, with ``nonfinite="raise"``.
        """
        shape = tuple(self._like.shape)
        if self._vectorized:
            values = self._batch(self._f(self.shown(points, (len(points), *shape))), len(points))
        else:
            values = torch.tensor([self._number(self._f(self.shown(point))) for point in points], dtype=torch.float64)
        self.nfev += len(points)
        bad = ~values.isfinite()
        if bad.any():
            if self._nonfinite == "raise":
                at = self.shown(points[bad][0])
                raise FloatingPointError(
                    f"f must be finite (or nonfinite must be 'skip'), got {values[bad][0].item()} at x = {at!r}"
                )
            values = torch.where(bad, torch.inf, values)
        return values

    def _number(self, value: Any) -> float:
        size = value.numel() if isinstance(value, Tensor) else np.size(value)
        if size != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else np.shape(value)
            raise ValueError(f"f must return a number, got values of shape {shape}")
        try:
            return number(value)
        except (TypeError, ValueError):
            raise ValueError(f"f must return a number, got {value!r}") from None

    def _batch(self, value: Any, count: int) -> Tensor:
        try:
            found = numbers(value)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"f must return numbers of shape ({count},), got {value!r}") from None
        if found.shape != (count,):
            raise ValueError(f"f must return numbers of shape ({count},), got values of shape {tuple(found.shape)}")
        return found


def number(value: Any) -> float:
    """Convert one real number to a float, which is infinite if the number is too large for it.

    Raises:
        TypeError: The value is not a real number.
        ValueError: The value has several elements.
    """
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, str | bytes):
        raise TypeError("text is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def numbers(value: Any) -> Tensor:
    """Copy a tensor, an array, a number or nested lists to float64 on the CPU, without rounding to float32.

    Raises:
        TypeError: The values are not real numbers.
        ValueError: Lists differ in their lengths.
    """
    if isinstance(value, Tensor) and not value.is_complex():
        return value.detach().to("cpu", torch.float64, copy=True)
    if isinstance(value, list | tuple):
        value = [one.tolist() if isinstance(one, Tensor) else one for one in value]
    found = np.asarray(value)
    if found.dtype.kind == "O":
        found = np.frompyfunc(number, 1, 1)(found)
    elif found.dtype.kind not in "biuf":
        raise TypeError(f"{found.dtype} is not a type of real numbers")
    return torch.from_numpy(np.array(found, dtype=np.float64))


def bounds_of(bounds: Any, start: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds ``(n,)`` in float64, infinite where there are none.

    The function is given points in ``dtype``. The bounds are therefore rounded to it, inwards, since a point between
    them would otherwise be outside once it is rounded. An ``x0`` may equal a bound that is rounded to the nearest
    number, which can be outside.

    Args:
        bounds: ``None``, one pair for each number of ``x0`` with ``None`` for no bound, or SciPy's ``Bounds``.
        start: ``x0`` flattened.
        dtype: Type of the points.

    Raises:
        ValueError: The bounds have another form, a lower bound is not below the upper one after rounding, or ``x0`` is
            outside of them.
    """
    size = len(start)
    lower, upper = start.new_full((size,), -torch.inf), start.new_full((size,), torch.inf)
    if bounds is None:
        return lower, upper
    try:
        if hasattr(bounds, "lb"):
            pairs = np.stack([np.broadcast_to(side, size) for side in (bounds.lb, bounds.ub)], axis=1).astype(float)
        else:
            given = bounds.tolist() if hasattr(bounds, "tolist") else bounds
            sides = [[-np.inf if low is None else low, np.inf if high is None else high] for low, high in given]
            pairs = np.array(sides, dtype=float).reshape(-1, 2)
    except (TypeError, ValueError, OverflowError):
        pairs = np.empty((0, 2))
    if len(pairs) != size or np.isnan(pairs).any():
        raise ValueError(f"bounds must be {size} pairs (lower, upper), got {bounds!r}")
    exact = torch.from_numpy(pairs)
    near = exact.to(dtype)
    low, high = near.double().unbind(1)
    inner = torch.nextafter(near, near.new_tensor([torch.inf, -torch.inf]).expand_as(near)).double()
    lower = torch.where(low < exact[:, 0], inner[:, 0], low)
    upper = torch.where(high > exact[:, 1], inner[:, 1], high)
    if not (lower < upper).all():
        raise ValueError(f"bounds must have each lower bound below the upper one in {dtype}, got {bounds!r}")
    if ((start < low) | (start > high)).any():
        at = int(((start < low) | (start > high)).nonzero()[0])
        raise ValueError(
            f"x0 must be within the bounds, got {start[at].item()} at position {at}, "
            f"where they are [{exact[at, 0].item()}, {exact[at, 1].item()}]"
        )
    return lower, upper


def widths_of(std: Any, start: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Initial standard deviations ``(n,)``: those given, a quarter of the bounds' distance, or 1.

    Raises:
        ValueError: They are not positive and finite, or there is not one for each number of ``x0``.
    """
    if std is None:
        distance = upper - lower
        return torch.where(distance.isfinite(), 0.25 * distance, 1.0)
    size = len(start)

    def fits(value: Any) -> bool:
        widths = numbers(value)
        return widths.numel() in (1, size) and bool(widths.min() > 0) and bool(widths.max() < math.inf)

    check("std", std, f"positive and finite, one number or {size}", fits)
    return numbers(std).flatten().expand(size).clone()
