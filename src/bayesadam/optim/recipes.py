"""Recipes: the settings that an optimiser takes where none are given.

``"learned"`` is the default of Vadam, Vprop, IVON and VOGN: with it the posterior's width is learned within an ordinary
training. It was chosen by measurement (``benchmarks/defaults.py``), and departs from the papers in four things:

- The start counts as 30 steps (``bridge=False``, ``initial_steps``), in place of ``1 / (tau (1 - b2))`` steps, which
  are 1,000 for Vadam and 100,000 for IVON: an ordinary training ends before such a start is forgotten.
- Vadam and IVON are told the batch size, and correct the square of a mean gradient by it.
- The prior is at the scale of each parameter's initialisation (``prior_precision="init"``) in place of ``N(0, 1)``.
- The KL divergence is multiplied by a temperature below 1, and by a higher one in longer trainings
  (:func:`longer_training`), which otherwise fit the noise of small data sets.

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
"""Passes over the data up to which a training has the temperature of its recipe."""

HOTTEST = 0.1
"""The temperature that longer trainings have at most."""

Recipes = Mapping[str, Mapping[str, Any]]


def recipe_of(recipes: Recipes, name: str | None) -> dict[str, Any]:
    """The settings of a recipe, the first where no name is given.

    Raises:
        ValueError: There is no recipe of that name.
    """
    if name is None:
        name = next(iter(recipes))
    if name not in recipes:
        raise ValueError(f"recipe must be one of {list(recipes)}, got {name!r}")
    return dict(recipes[name])


def longer_training(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The temperature of a training whose length is known: ``min(0.1, tau max(1, epochs / 30))``.

    With ``epochs = total_steps batch_size / num_data``, it is the recipe's ``tau`` up to 30 epochs, grows in proportion
    to them, and ends at 0.1. Where the length is not known, and with the recipe ``"paper"``, it stays as it is.

    Args:
        settings: Hyper-parameters of an optimiser, not checked yet.

    Returns:
        What differs.
    """
    names = ("temperature", "batch_size", "total_steps", "num_data")
    known = [value for name in names if isinstance(value := settings.get(name), int | float) and 0 < value < math.inf]
    if len(known) < len(names):
        return {}
    temperature, batch_size, total_steps, num_data = known
    if temperature >= HOTTEST:
        return {}
    return {"temperature": min(HOTTEST, temperature * max(1.0, total_steps * batch_size / num_data / EPOCHS))}
