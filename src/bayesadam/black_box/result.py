"""The result of a minimisation, with the attributes of SciPy's ``OptimizeResult``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class MinimizeResult:
    """Result of :func:`minimize`; ``result["x"]`` and ``dict(result)`` work as well, as in SciPy.

    Arrays are tensors if ``x0`` was a tensor, and NumPy arrays otherwise.

    Attributes:
        x: The best point evaluated, shaped like ``x0``; if the function is noisy, the mean of ``q``.
        fun: Value at ``x``; for a noisy function the mean of the last evaluations, all made at ``x``.
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

    def keys(self) -> Iterator[str]:
        """Names of the attributes."""
        return (field.name for field in fields(self))

    def __getitem__(self, name: str) -> Any:
        """Return an attribute by name."""
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)
