"""Predictions of rows that the networks have not seen, with the actual values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesadam.tables.report.numbers import Array

OURS = "bayesadam"
"""Name of the model of the report."""
LEVEL = 0.95
"""Nominal coverage of the intervals."""
FEW = 20
"""Minimum number of rows for a statement or a chart about uncertainty."""


@dataclass(frozen=True)
class PredictedNumbers:
    """Predictions of numbers, ``(N,)`` each.

    Attributes:
        y: Actual values.
        mean: Predictive means.
        std: Predictive standard deviations; NaN where there is none.
        epistemic_std: Standard deviations of the epistemic part.
        lower: Lower ends of the 95% intervals.
        upper: Upper ends.
        pit: Predicted probabilities of a value below the actual one (probability integral transform), plus a random
            part of that of the actual one if it has any.
        row: Numbers of the rows in the file.
        drawn_from: Number of the rows from which these were drawn at random; ``None`` if they are all.
        weight: Weights of the rows, ``(N,)``; ``None`` if they are equal.
    """

    y: Array
    mean: Array
    std: Array
    epistemic_std: Array
    lower: Array
    upper: Array
    pit: Array
    row: Array
    drawn_from: int | None = None
    weight: Array | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def errors(self) -> tuple[Array, Array]:
        """Squared errors and their expectations, the variances, ``(N,)`` each."""
        return (self.y - self.mean) ** 2, self.std**2

    @property
    def promises(self) -> tuple[NDArray[np.bool_], Array, Array]:
        """Mask of the rows inside their intervals, promised probabilities, and widths of the intervals.

        An interval of counts covers more than it promises, since its ends are whole numbers; the mask is made from the
        integral transform, by which a part of the rows at the ends are outside.
        """
        return np.abs(2.0 * self.pit - 1.0) <= LEVEL, np.full(len(self), LEVEL), self.upper - self.lower

    @property
    def uncertainty(self) -> tuple[Array, Array, str]:
        """Variances, their epistemic parts, and the word for them."""
        return self.std**2, self.epistemic_std**2, "variance"

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Mask of the rows inside their intervals."""
        return np.asarray((self.lower <= self.y) & (self.y <= self.upper))


@dataclass(frozen=True)
class PredictedClasses:
    """Predictions of classes.

    Attributes:
        label: Indices of the actual classes, ``(N,)``.
        probs: Probabilities of all classes, ``(N, C)``.
        entropy: Entropy of the probabilities, ``(N,)``.
        mutual_information: The epistemic part of the entropy, ``(N,)``.
        row: Numbers of the rows in the file, ``(N,)``.
        drawn_from: Number of the rows from which these were drawn at random; ``None`` if they are all.
        weight: Weights of the rows, ``(N,)``; ``None`` if they are equal.
    """

    label: NDArray[np.intp]
    probs: Array
    entropy: Array
    mutual_information: Array
    row: Array
    drawn_from: int | None = None
    weight: Array | None = None

    def __len__(self) -> int:
        return len(self.label)

    @property
    def errors(self) -> tuple[Array, Array]:
        """1 for a wrong class and 0 for a right one, and the expectation of this, ``(N,)`` each."""
        return (~self.right).astype(np.float64), 1.0 - self.confidence

    @property
    def promises(self) -> tuple[NDArray[np.bool_], Array, Array]:
        """Mask of the rows that are right, promised probabilities, and these again, by which rows are ordered."""
        return self.right, self.confidence, self.confidence

    @property
    def uncertainty(self) -> tuple[Array, Array, str]:
        """Entropies, their epistemic parts, and the word for them."""
        return self.entropy, self.mutual_information, "entropy"

    @property
    def predicted(self) -> NDArray[np.intp]:
        """Indices of the most probable classes."""
        return np.asarray(self.probs.argmax(axis=1))

    @property
    def confidence(self) -> Array:
        """Probabilities of the most probable classes."""
        return np.asarray(self.probs.max(axis=1))

    @property
    def right(self) -> NDArray[np.bool_]:
        """Mask of the rows whose most probable class is the actual one."""
        return np.equal(self.label, self.predicted)


Predicted = PredictedNumbers | PredictedClasses


def predicted(columns: Mapping[str, Any], task: str) -> Predicted | None:
    """Return the rows of the report's data without those whose prediction is missing; ``None`` if there are none.

    Raises:
        ValueError: A label is not the index of a class.
    """
    kind = PredictedNumbers if task == "regression" else PredictedClasses
    names = [name for name in kind.__dataclass_fields__ if name != "drawn_from" and name in columns]
    arrays: dict[str, Array] = {name: np.array(columns[name], dtype=np.float64) for name in names}
    required = ("y", "mean", "lower", "upper", "pit") if task == "regression" else ("label", "probs")
    finite = np.logical_and.reduce(
        [np.isfinite(arrays[name]).reshape(len(arrays[name]), -1).all(1) for name in required]
    )
    if not finite.any():
        return None
    arrays = {name: values[finite] for name, values in arrays.items()}
    drawn_from = columns.get("drawn_from")
    if task == "regression":
        return PredictedNumbers(**arrays, drawn_from=drawn_from)
    label, classes = arrays.pop("label"), arrays["probs"].shape[1]
    if label.min() < 0 or label.max() >= classes:
        raise ValueError(f"label must be indices of the {classes} classes, got others")
    return PredictedClasses(label.astype(np.intp), **arrays, drawn_from=drawn_from)


def weight_of(rows: Predicted, part: Any) -> Array | None:
    """Return the weights of some of the rows; ``None`` if all are equal."""
    return None if rows.weight is None else rows.weight[part]


def counted(rows: Predicted, what: str, clause: str = "") -> str:
    """Return the number of the rows with what they are, and the number of those from which they were drawn."""
    drawn = "" if rows.drawn_from is None else f", drawn at random from {rows.drawn_from:,}"
    return f"{len(rows):,} {what}{'s' * (len(rows) != 1)}{clause}{drawn}"
