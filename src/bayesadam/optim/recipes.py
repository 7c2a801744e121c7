"""Recipes: named sets of default hyper-parameters of the optimisers.

``"learned"`` is the default of Vadam, Vprop, IVON and VOGN. With it the width of the posterior is learned within
a training of ordinary length. It was chosen by measurement (``benchmarks/defaults.py``) and departs from the papers in
five ways:

- The initial precision counts as 30 steps (``bridge=False``, ``initial_steps``) instead of ``1 / (tau (1 - b2))``
  steps. The latter are 1,000 steps for Vadam and 100,000 for IVON, and most trainings end before that.
- Vadam and IVON take the batch size, and correct the square of a mean gradient by it.
- The prior has the scale of each parameter's initialisation (``prior_precision="init"``) instead of ``N(0, 1)``.
- The temperature of the KL divergence is below 1. It is higher in longer trainings (:func:`longer_training`), which
  otherwise fit the noise of small data sets.
- The learning rates of IVON and VOGN, which are fractions of a Newton step, are lower for large networks and
  many examples (:class:`NewtonRate`).

``"paper"`` has the settings of Khan et al. 2018, Osawa et al. 2019 and Shen et al. 2024: temperature 1, prior
``N(0, 1)``, and an initial precision of ``num_data``. It is the only recipe of the other optimisers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bayesadam.engine.store import INIT

PAPER: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "prior_precision": 1.0, "temperature": 1.0}
LEARNED: dict[str, Any] = {**PAPER, "prior_precision": INIT, "temperature": 0.03, "bridge": False}

EPOCHS = 30
"""Longest training, in epochs, that has the temperature of its recipe; longer ones have a higher temperature."""

HOTTEST = 0.1
"""Upper bound of the temperature of longer trainings."""

Recipes = Mapping[str, Mapping[str, Any]]


class Sizes(NamedTuple):
    """The sizes on which the learning rate of :class:`NewtonRate` depends, before their check; None means unknown.

    Attributes:
        weights: Number of weights that are trained.
        num_data: Number of training examples.
        batch_size: Number of examples in a step.
    """

    weights: Any = None
    num_data: Any = None
    batch_size: Any = None


UNKNOWN = Sizes()


@dataclass(frozen=True)
class NewtonRate:
    """A learning rate that is a fraction of a Newton step, from the sizes of the network, the data and a minibatch.

    If a step moves the mean by the fraction ``a`` of a Newton step, the noise of minibatches of ``M`` examples keeps
    the training loss about ``a P / (4 M)`` nats above its minimum, where ``P`` is the number of weights that the data
    determine. It is not known before the training, but it hardly exceeds the number of weights or the number ``N`` of
    examples, whichever is smaller. So ``a`` is ``min(0.03, 0.8 M / min(weights, N))``: in a network with more weights
    than examples, at most 0.8 Newton steps per epoch.

    Attributes:
        unknown: The learning rate if the batch size is unknown; ``a`` is then 0.01.
    """

    unknown: float

    def at(self, sizes: Sizes) -> float:
        """Return ``unknown min(3, 80 M / min(weights, N))``, or ``unknown`` if one of the sizes is not known."""
        known = [value for value in sizes if isinstance(value, int | float) and 0 < value < math.inf]
        if len(known) < len(sizes):
            return self.unknown
        weights, num_data, batch_size = known
        return self.unknown * min(3.0, 80.0 * batch_size / min(weights, num_data))


def recipe_of(recipes: Recipes, name: str | None, sizes: Sizes = UNKNOWN) -> dict[str, Any]:
    """Return the settings of the named recipe, or of the first one if ``name`` is None.

    Args:
        recipes: The recipes of an optimiser.
        name: Name of a recipe.
        sizes: Sizes of the training, on which a learning rate may depend.

    Raises:
        ValueError: There is no recipe of that name.
    """
    if name is None:
        name = next(iter(recipes))
    if name not in recipes:
        raise ValueError(f"recipe must be one of {list(recipes)}, got {name!r}")
    settings = dict(recipes[name])
    if isinstance(rate := settings["lr"], NewtonRate):
        settings["lr"] = rate.at(sizes)
    return settings


def longer_training(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Raise the temperature of a long training to ``min(0.1, tau max(1, epochs / 30))``.

    Here ``epochs = total_steps batch_size / num_data``: the temperature is the recipe's ``tau`` up to 30 epochs, then
    grows in proportion to the epochs, up to 0.1. It does not change if the length of the training is unknown, nor with
    the recipe ``"paper"``.

    Args:
        settings: Hyper-parameters of an optimiser, not checked yet.

    Returns:
        The settings that change.
    """
    names = ("temperature", "batch_size", "total_steps", "num_data")
    known = [value for name in names if isinstance(value := settings.get(name), int | float) and 0 < value < math.inf]
    if len(known) < len(names):
        return {}
    temperature, batch_size, total_steps, num_data = known
    if temperature >= HOTTEST:
        return {}
    return {"temperature": min(HOTTEST, temperature * max(1.0, total_steps * batch_size / num_data / EPOCHS))}
