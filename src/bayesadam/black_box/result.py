"""What a minimisation returns, with the attributes of SciPy's ``OptimizeResult``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class MinimizeResult:
    """The result of :func:`minimize`; ``result["x"]`` and ``dict(result)`` work as well, as SciPy's does.

    Arrays are tensors where ``x0`` was a tensor, and NumPy arrays elsewhere.

    Attributes:
        x: The best point, shaped like ``x0``: the best one evaluated, or the mean of ``q`` if the function is noisy.
        fun: The value there; of a noisy function the mean of the last evaluations, all made at ``x``.
        mean: Mean of ``q``, shaped like ``x0``.
        std: Standard deviations of ``q``, shaped like ``x0``.
        covariance: Covariance of ``q``, ``(n, n)`` over the flattened ``x0``; ``None`` if it is diagonal.
        nfev: Number of points at which the function was evaluated.
        nit: Number of steps of ``q``.
        success: Whether a tolerance was met.
        status: 0: a tolerance was met; 1: ``maxfev`` evaluations were made; 2: the callback stopped.
        message: The same in words.
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
        """An attribute by name."""
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)
