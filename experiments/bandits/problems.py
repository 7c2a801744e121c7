"""The problems of the table, and the wheel: the rewards of all actions in every round of every run.

Rewards and contexts are those of Riquelme et al. 2018 ("Deep Bayesian Bandits Showdown").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.data import load

Floats = NDArray[np.float64]
Table = tuple[Floats, Floats, Floats]
"""Contexts ``(T, d)``, rewards ``(T, A)``, and the optimal policy's reward ``(T,)``, of one run."""

LENGTHS = {
    "mushroom": 8124,
    "financial": 3713,
    "jester": 19181,
    "statlog": 43500,
    "adult": 45222,
    "covertype": 10000,
    "census": 10000,
}
"""Published number of rounds of each problem."""

JOKES = 54
"""Seed of the division of the jokes into contexts and actions.

The published reward of uniform play, 0.34 with a standard deviation of 0.00, shows that the actions were the same eight
jokes in all runs, but not which jokes. With other divisions uniform play earns between 0 and 0.4; this is the first
seed with which it earns 0.34.
"""

NOISE = 0.01
"""Standard deviation of the wheel's rewards."""
WHEEL = (1.2, 1.0, 50.0)
"""Expected rewards of the safe action, of the other four actions, and of the best of these four outside the wheel."""


@dataclass(frozen=True)
class Problem:
    """A problem of ``T`` rounds.

    Attributes:
        contexts: ``(T, d)`` in float32.
        rewards: ``(T, A)``, in float32.
        optimal: Rewards of the optimal policy, ``(T,)`` in float64, by which the rewards of an agent are divided.
    """

    contexts: Tensor
    rewards: Tensor
    optimal: Tensor


def problem(name: str, rounds: int, seed: int) -> Problem:
    """Create a problem of the table, or the wheel with a delta of 0.95 for ``"wheel-0.95"``."""
    rng = np.random.default_rng([seed, 7])
    if name.startswith("wheel-"):
        table = wheel(rng, rounds, float(name.removeprefix("wheel-")))
    else:
        table = MAKERS[name](rng, rounds)
    contexts, rewards, optimal = map(torch.from_numpy, table)
    return Problem(contexts.float(), rewards.float(), optimal)


_load = cache(load)


def mushroom(rng: np.random.Generator, rounds: int) -> Table:
    """Draw mushrooms, with replacement, that are eaten (action 1) or not (action 0).

    Eating an edible mushroom has the reward 5; a poisonous one has 5 or -35, each with probability 1/2.

    The reward of the optimal policy is the expected one: 5 for an edible mushroom, and otherwise 0.
    """
    data = _load("bandits/mushroom")
    rows = rng.integers(len(data.x), size=rounds)
    edible = data.y[rows].numpy() == 1
    eaten = np.where(edible | (rng.random(rounds) < 0.5), 5.0, -35.0)
    return data.x[rows].double().numpy(), np.stack([np.zeros(rounds), eaten], axis=1), np.where(edible, 5.0, 0.0)


def financial(rng: np.random.Generator, rounds: int) -> Table:
    """Draw eight portfolios, with random weights of norm 1 on 21 price differences, and noise of 0.01 to 0.08."""
    x = _rows("financial", rng, rounds)[0]
    weights = rng.uniform(-1.0, 1.0, (x.shape[1], 8))
    means = x @ (weights / np.linalg.norm(weights, axis=0))
    noise = 0.01 * np.arange(1, 9) * rng.standard_normal(means.shape)
    return x, means + noise, means.max(axis=1)


def jester(rng: np.random.Generator, rounds: int) -> Table:
    """Draw a choice among eight jokes, given the ratings of 32 others. The division is the same in all runs."""
    ratings, _ = _rows("jester", rng, rounds)
    ratings = ratings[:, np.random.default_rng(JOKES).permutation(ratings.shape[1])]
    return ratings[:, :32], ratings[:, 32:], ratings[:, 32:].max(axis=1)


def _classes(name: str) -> Callable[[np.random.Generator, int], Table]:
    """Return a function that draws a classification: a reward of 1 for the right label, and standardised features."""

    def make(rng: np.random.Generator, rounds: int) -> Table:
        x, y = _rows(name, rng, rounds)
        spread = x.std(axis=0)
        x = (x - x.mean(axis=0)) / np.where(spread == 0, 1.0, spread)
        return x, np.eye(NUM_ACTIONS[name])[y], np.ones(rounds)

    return make


def wheel(rng: np.random.Generator, rounds: int, delta: float) -> Table:
    """Draw the wheel, with contexts that are uniform in the unit disc.

    Action 0 has the reward 1.2 and the others have 1, except that one of these has 50 outside the radius ``delta``.

    The quadrant determines which action it is (Riquelme et al. 2018, section 5.4).
    """
    radius = np.sqrt(rng.random(rounds))
    angle = rng.uniform(0.0, 2.0 * math.pi, rounds)
    x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    safe, plain, large = WHEEL
    means = np.full((rounds, 5), plain)
    means[:, 0] = safe
    quadrant = 1 + (x[:, 0] < 0).astype(int) * 2 + (x[:, 1] < 0).astype(int)
    outside = radius > delta
    means[np.nonzero(outside)[0], quadrant[outside]] = large
    return x, means + NOISE * rng.standard_normal(means.shape), means.max(axis=1)


def _rows(name: str, rng: np.random.Generator, rounds: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the first rows of a data set in random order."""
    data = _load(f"bandits/{name}")
    x, y = (data.x_train, data.y_train) if name == "statlog" else (data.x, data.y)
    rows = torch.from_numpy(rng.permutation(len(x))[:rounds])
    return x[rows].double().numpy(), y[rows].numpy()


NUM_ACTIONS = {"mushroom": 2, "financial": 8, "jester": 8, "statlog": 7, "adult": 14, "covertype": 7, "census": 9}

MAKERS: dict[str, Callable[[np.random.Generator, int], Table]] = {
    "mushroom": mushroom,
    "financial": financial,
    "jester": jester,
    "statlog": _classes("statlog"),
    "adult": _classes("adult"),
    "covertype": _classes("covertype"),
    "census": _classes("census"),
}
