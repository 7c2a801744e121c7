"""The class of data sets: tensors with their names, licence and scalers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Task: TypeAlias = Literal["regression", "binary", "classification", "bandit", "text"]


@dataclass(frozen=True, eq=False)
class Standardizer:
    """Affine map to mean 0 and standard deviation 1, column by column.

    Attributes:
        mean: ``(d,)`` float64, in original units; 0-d in the identity.
        std: ``(d,)`` float64, in original units; 0-d in the identity.
    """

    mean: Tensor
    std: Tensor

    @classmethod
    def identity(cls) -> Standardizer:
        """The map that changes nothing."""
        return cls(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))

    @classmethod
    def fit(cls, x: Tensor) -> Standardizer:
        """Fit to the rows of ``x``, ``(n, d)``, with the divisor ``n - 1``; constant columns get a standard deviation
        of 1.

        Raises:
            ValueError: There are no rows.
        """
        if len(x) == 0:
            raise ValueError(f"x must have at least one row, got shape {tuple(x.shape)}")
        x = x.double()
        constant = x.amin(0) == x.amax(0)
        std = torch.ones_like(constant, dtype=torch.float64) if len(x) == 1 else x.std(0)
        # A constant column's computed deviation is rounding error, not always 0.
        return cls(x.mean(0), std.masked_fill(constant, 1.0))

    def transform(self, x: Tensor) -> Tensor:
        """Convert ``(..., d)`` from original to standardised units, with the same dtype and device."""
        return (x - self.mean.to(x)) / self.std.to(x)

    def inverse(self, x: Tensor) -> Tensor:
        """Convert ``(..., d)`` from standardised to original units, with the same dtype and device.

        For a standard deviation, multiply by ``std`` only.
        """
        return x * self.std.to(x) + self.mean.to(x)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with a training and a test part. Without a division, all rows are in the training part.

    Attributes:
        name: Name in ``names()``.
        task: "regression", "binary", "classification", "bandit" or "text".
        x_train: Features, ``(n, d)`` float32; the codes of the characters, ``(n,)`` int64, for text.
        y_train: Targets, ``(n, k)`` float32, or labels, ``(n,)`` int64 from 0. Bandits whose rewards the experiment
            makes have ``k = 0``. For text, the next character.
        x_test: Features of the test part, in the form of ``x_train``; without rows if nothing is held out.
        y_test: Targets of the test part, in the form of ``y_train``; without rows if nothing is held out.
        target_names: Names of the targets, or of the classes; for text the alphabet.
        x_scaler: Standardiser of the features, from the training part; the identity if they were not standardised.
        y_scaler: Standardiser of regression targets: ``y_scaler.inverse(prediction)`` is in original units.
        split: The split that was loaded.
    """

    name: str
    task: Task
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    target_names: tuple[str, ...]
    x_scaler: Standardizer
    y_scaler: Standardizer
    split: int | None

    @property
    def x(self) -> Tensor:
        """Features of the training part, then of the test part."""
        return torch.cat([self.x_train, self.x_test])

    @property
    def y(self) -> Tensor:
        """Targets of the training part, then of the test part."""
        return torch.cat([self.y_train, self.y_test])
