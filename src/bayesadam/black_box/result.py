"""The result of a minimisation, with the attributes of SciPy's ``OptimizeResult``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, eq=False)
class MinimizeResult(Mapping[str, Any]):
    """Result of :func:`minimize`, which is also a mapping of its attributes by name, as in SciPy: ``result["x"]`` is
    ``result.x``.

    Results are compared by identity. Arrays are tensors if ``x0`` was a tensor, and NumPy arrays otherwise.

    Attributes:
        x: The best point evaluated, shaped like ``x0``; if the function is noisy, the mean of ``q``.
        fun: Value at ``x``. For a noisy function it is the mean of the last evaluations, all made at ``x``; only the
            results that a callback is given have the mean over the points of the last step instead, since the function
            has not been evaluated at ``x`` yet.
        mean: Mean of ``q``, shaped like ``x0``.
        std: Standard deviations of ``q``, shaped like ``x0``.
        covariance: Covariance of ``q``, ``(n, n)`` over the flattened ``x0``; ``None`` if it is diagonal.
        nfev: Number of points at which the function was evaluated.
        nit: Number of steps of ``q``.
        success: Whether a tolerance was met.
        status: 0 if a tolerance was met, 1 if ``maxfev`` evaluations were made, 2 if the callback stopped the
            minimisation.
        message: Meaning of the status in words.
        noisy: Whether the function was treated as noisy.
    """

    x: Any
    fun: float
    mean: Any
    std: Any
    covariance: Any
    nfev: int
    nit: int
    success: bool
    status: int
    message: str
    noisy: bool

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the attributes."""
        return (field.name for field in fields(self))

    def __len__(self) -> int:
        """Return the number of attributes."""
        return len(fields(self))

    def __getitem__(self, name: str) -> Any:
        """Return an attribute by name."""
        if name not in tuple(self):
            raise KeyError(name)
        return getattr(self, name)
