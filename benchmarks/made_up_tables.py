"""Tables with properties that are rare among the public ones and known from tables on which peers were ahead.

The first two are almost free of noise, so that the error of the fitted function decides. Settings of the estimators may
be chosen on these tables; the public tables show whether they help elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class MadeUp:
    """One table, from a function that returns its inputs and targets."""

    make: Callable[[np.random.Generator], tuple[Array, Array]]

    def load(self) -> tuple[pd.DataFrame, Array]:
        """Inputs and targets, the same in every run."""
        inputs, target = self.make(np.random.default_rng(0))
        return pd.DataFrame(inputs).rename(columns=str), target


def _kink(generator: np.random.Generator) -> tuple[Array, Array]:
    x = generator.standard_normal((400, 10))
    y = np.maximum(0.0, x @ generator.standard_normal(10) - 0.5)
    return x, y + 0.01 * y.std() * generator.standard_normal(400)


def _smooth(generator: np.random.Generator) -> tuple[Array, Array]:
    x = generator.uniform(-2.0, 2.0, (400, 6))
    y = np.sin(2.0 * x[:, 0]) + x[:, 1] ** 2 / 2.0 + np.exp(0.5 * x[:, 2]) + np.cos(x[:, 3] + x[:, 4]) + 0.5 * x[:, 5]
    return x, y + 0.01 * y.std() * generator.standard_normal(400)


def _boundaries(generator: np.random.Generator) -> tuple[Array, Array]:
    x = np.round(np.exp(generator.normal([3.0, 4.0, 2.0, 3.0, 1.0, 2.0], [1.0, 1.5, 1.0, 1.0, 0.5, 1.0], (1_200, 6))))
    labels = 2 * (x[:, 0] > np.where(x[:, 1] > 30.0, 30.0, 12.0)) + (x[:, 1] > np.where(x[:, 2] > 5.0, 90.0, 45.0))
    return x, np.where(generator.random(1_200) < 0.1, generator.integers(0, 4, 1_200), labels)


def _zeros(generator: np.random.Generator) -> tuple[Array, Array]:
    x = generator.standard_normal((1_000, 6))
    present = generator.random(1_000) < 1.0 / (1.0 + np.exp(0.5 - 1.5 * x[:, 0] + x[:, 1]))
    rate = np.exp(0.7 + 0.6 * x[:, 0] + 0.4 * x[:, 2]) * generator.gamma(2.0, 0.5, 1_000)
    return x, np.where(present, generator.poisson(rate), 0).astype(np.float64)


def _wages(generator: np.random.Generator) -> tuple[Array, Array]:
    education = generator.integers(8, 19, 1_500)
    experience = generator.uniform(0.0, 40.0, 1_500)
    tenure = np.minimum(experience, generator.exponential(6.0, 1_500))
    town, union = generator.integers(0, 2, (2, 1_500))
    log_wage = 0.9 + 0.09 * education + 0.04 * experience - 0.0007 * experience**2 + 0.1 * np.log1p(tenure)
    log_wage += 0.15 * town + 0.1 * union * (education < 13)
    noise = (0.1 + 0.01 * education) * generator.standard_t(5.0, 1_500)
    return np.stack([education, experience, tenure, town, union], axis=1), np.exp(log_wage + noise)


REGRESSION = {
    "kink": MadeUp(_kink),
    "smooth sum": MadeUp(_smooth),
    "many zeros": MadeUp(_zeros),
    "heavy tails": MadeUp(_wages),
}
CLASSIFICATION = {"boundaries": MadeUp(_boundaries)}
