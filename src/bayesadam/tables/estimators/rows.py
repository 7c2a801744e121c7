"""Rows with their weights and groups, their distribution over the members, and the rows of a fit."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from bayesadam.scaling import LARGEST
from bayesadam.tables.estimators.plan import Plan

Array = NDArray[Any]

COPIES = 0.2
"""Share of rows that are copies of others from which on a warning is given."""

SEVERAL = 0.05
"""Share of inputs that occur with several targets, from which on equal rows may be equal by chance."""


@dataclass(frozen=True)
class TrainingRows:
    """The standardised rows of a fit.

    Attributes:
        inputs: ``(N, D)``.
        targets: Standardised targets, ``(N, K)``, or indices of classes, ``(N,)``.
        weight: Weights of the rows, ``(N,)``.
        plan: The rows that every member leaves out.
    """

    inputs: Tensor
    targets: Tensor
    weight: Array
    plan: Plan

    @property
    def left_out(self) -> NDArray[np.int64]:
        """Indices of the rows that some member leaves out."""
        return self.plan.rows

    @property
    def counts(self) -> NDArray[np.float64]:
        """Weights of the rows left out, which add up to the number of independent rows."""
        return self.plan.counts(self.weight)

    def arrays(self) -> tuple[Array, Array, Array]:
        """Return inputs in float64, targets in float64 or labels, and weights with a mean of 1."""
        targets = as_array(self.targets) if self.targets.is_floating_point() else self.targets.cpu().numpy()
        return as_array(self.inputs), targets, self.weight / self.weight.mean()


def as_array(tensor: Tensor) -> Array:
    """Return a tensor as a float64 array."""
    return tensor.detach().double().cpu().numpy()


def require_single(name: str, values: Array) -> None:
    """Raise ``ValueError`` for numbers beyond the range of single precision, in which the networks compute."""
    least, largest = np.fmin.reduce(values, axis=None, initial=0.0), np.fmax.reduce(values, axis=None, initial=0.0)
    if max(-float(least), float(largest)) > LARGEST:
        place = tuple(int(i) for i in np.unravel_index(np.nanargmax(np.abs(values)), values.shape))
        raise ValueError(f"{name} must be finite (below {LARGEST:g}), got {values[place]:g} at {place}")


def require_targets(y: Any) -> None:
    """Raise ``ValueError`` if rows have no target, or for several targets not all of them."""
    missing = np.asarray(pd.isna(y))
    rows = int(missing.reshape(len(missing), -1).any(1).sum()) if missing.ndim and missing.size else 0
    if rows:
        which = "1 row" if rows == 1 else f"{rows:,} rows"
        raise ValueError(
            f"y must have a target in every row, got {which} of {len(missing):,} without a target: leave out such rows"
        )


def require_comparable(name: str, values: Array) -> None:
    """Raise ``ValueError`` for groups or labels that are missing, or of which some are texts and some numbers."""
    if values.dtype.kind not in "OfMm":
        return
    missing = pd.isna(values)
    if missing.any():
        raise ValueError(f"{name} must have no missing values, got {values[missing][0]!r}")
    if len({isinstance(value, str) for value in values.ravel().tolist()}) > 1:
        raise ValueError(f"{name} must be all texts or all numbers, got both")


def weighed(
    X: Array, y: Array, sample_weight: ArrayLike | None, groups: ArrayLike | None
) -> tuple[Array, Array, Array | None, Array | None, Array]:
    """Return the rows with their weights, at most 1, and groups, without the rows of weight 0; and their indices."""
    groups = None if groups is None else np.asarray(groups)
    if groups is not None and groups.shape != (len(X),):
        raise ValueError(f"groups must be of shape {(len(X),)}, got {groups.shape}")
    if groups is not None:
        require_comparable("groups", groups)
    if sample_weight is None:
        return X, y, None, groups, np.arange(len(X))
    weight: Array = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if not ((weight >= 0).all() and weight.max() > 0):
        raise ValueError("sample_weight must have no negative number and at least one positive number, got others")
    weight = weight / weight.max()
    positive = np.flatnonzero(weight)
    return X[positive], y[positive], weight[positive], None if groups is None else groups[positive], positive


def copies_of(inputs: pd.DataFrame, targets: pd.DataFrame) -> tuple[NDArray[np.int64], bool]:
    """Return a number for each row, ``(N,)``, which equal rows share, and whether rows are equal by chance.

    Rows of a few categories may be equal by chance; then the same inputs occur with several targets.
    """
    alone, whole = (
        pd.util.hash_pandas_object(part, index=False) for part in (inputs, pd.concat([inputs, targets], axis=1))
    )
    codes = pd.factorize(whole)[0]
    return codes, alone.nunique() <= (1.0 - SEVERAL) * (codes.max() + 1)


def warn_of_copies(X: Array, y: Array, stacklevel: int) -> None:
    """Warn if many rows are exact copies of others, so that rows that are left out in training are known from these."""
    codes, by_chance = copies_of(pd.DataFrame(X), pd.DataFrame(y))
    copies = len(X) - (int(codes.max()) + 1)
    if copies > COPIES * len(X) and not by_chance:
        warnings.warn(
            f"{copies:,} of {len(X):,} rows are copies of others, by which left-out rows are known: uncertainties may "
            "be far too small. Drop them, and give their numbers as sample_weight if these have a meaning",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def numbered(groups: Array | None, count: int) -> NDArray[np.int64]:
    """Return the group of each row, ``(N,)``, numbered from 0; without groups, every row is a group."""
    return np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1].astype(np.int64)


def member_parts(
    divided: Plan, inputs: Tensor, targets: Tensor, weight: Array | None
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]], list[Tensor] | None, list[Tensor] | None]:
    """Return training rows, rows left out, and the weights of both for every member; members may share tensors."""
    masks = [torch.from_numpy(mask).to(inputs.device) for mask in divided.left_out]
    count = len(masks)
    masks = masks[:1] if divided.shared else masks
    data = [(inputs[~mask], targets[~mask]) for mask in masks]
    held_out = [(inputs[mask], targets[mask]) for mask in masks] if divided.left_out.any() else []
    times = count if divided.shared else 1
    data, held_out = data * times, held_out * times
    if weight is None:
        return data, held_out, None, None
    whole = torch.from_numpy(weight).to(inputs.device)
    return data, held_out, [whole[~mask] for mask in masks] * times, [whole[mask] for mask in masks] * times
