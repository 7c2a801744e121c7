"""Standardised training and held-out rows of regression data, and the published splits of the UCI sets."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from experiments.data import Standardizer, load

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Part:
    """A training and a held-out part, standardised by the training part.

    Attributes:
        train: Standardised inputs ``(n, d)`` and targets ``(n, k)``.
        x: Standardised held-out inputs.
        y: Held-out targets in original units, ``(m, k)``.
        scaler: Standardisation of the targets.
    """

    train: Pair
    x: Tensor
    y: Tensor
    scaler: Standardizer

    @classmethod
    def of(cls, train: Pair, test: Pair) -> Part:
        """Standardise raw tensors."""
        inputs, targets = Standardizer.fit(train[0]), Standardizer.fit(train[1])
        x, y = inputs.transform(train[0].double()).float(), targets.transform(train[1].double()).float()
        return cls((x, y), inputs.transform(test[0].double()).float(), test[1], targets)


def year() -> list[Part]:
    """Load the published division of the years of songs."""
    data = load("year")
    return [Part.of((data.x_train, data.y_train), (data.x_test, data.y_test))]


def splits(name: str, count: int) -> list[Part]:
    """Load the first published splits of a data set such as ``"uci/boston"``."""
    found = [load(name, split=split) for split in range(count)]
    return [Part.of((data.x_train, data.y_train), (data.x_test, data.y_test)) for data in found]
