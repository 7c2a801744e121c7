"""Recipes: named sets of default hyper-parameters of the optimisers.

``"learned"`` is the default of Vadam, Vprop, IVON, EVON and VOGN. With it the width of the posterior is learned within
a training of ordinary length. It was chosen by measurement (``benchmarks/defaults.py``) and departs from the papers in
four ways:

- The initial precision counts as 30 steps (``bridge=False``, ``initial_steps``) instead of ``1 / (tau (1 - b2))``
  steps. The latter are 1,000 steps for Vadam and 100,000 for IVON, and most trainings end before that.
- Vadam and IVON take the batch size, and correct the square of a mean gradient by it.
- The prior has the scale of each parameter's initialisation (``prior_precision="init"``) instead of ``N(0, 1)``.
- The temperature of the KL divergence is below 1. It is higher in longer trainings (:func:`longer_training`), which
  otherwise fit the noise of small data sets.

``"paper"`` has the settings of Khan et al. 2018, Osawa et al. 2019 and Shen et al. 2024: temperature 1, prior
``N(0, 1)``, and an initial precision of ``num_data``. It is the only recipe of the other optimisers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bayesadam.engine.store import INIT

PAPER: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "prior_precision": 1.0, "temperature": 1.0}
LEARNED: dict[str, Any] = {**PAPER, "prior_precision": INIT, "temperature": 0.03, "bridge": False}

EPOCHS = 30
"""Longest training, in epochs, that has the temperature of its recipe; longer ones have a higher temperature."""

HOTTEST = 0.1
"""Upper bound of the temperature of longer trainings."""

Recipes = Mapping[str, Mapping[str, Any]]


def recipe_of(recipes: Recipes, name: str | None) -> dict[str, Any]:
    """Return the settings of the named recipe, or of the first one if ``name`` is None.

    Raises:
        ValueError: There is no recipe of that name.
    """
    if name is None:
        name = next(iter(recipes))
    if name not in recipes:
        raise ValueError(f"recipe must be one of {list(recipes)}, got {name!r}")
    return dict(recipes[name])


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
