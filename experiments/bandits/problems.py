"""The six problems of the table, and the wheel: what every action would have paid in every round of every run.

Rewards and contexts are those of Riquelme et al. 2018 ("Deep Bayesian Bandits Showdown").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import bayesadam as ba

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
}
"""Rounds at the published length."""

JOKES = 54
"""Seed of the division of the jokes into contexts and actions.

The published reward of uniform play, 0.34 with a standard deviation of 0.00, shows that the actions were the same eight
jokes in all runs, but not which; uniform play earns between 0 and 0.4. This is the first seed with which it earns 0.34.
"""

NOISE = 0.01
"""Standard deviation of the wheel's rewards."""
WHEEL = (1.2, 1.0, 50.0)
"""Expected reward of the safe action, of the other four, and of the right one of these outside the wheel."""


@dataclass(frozen=True)
class Problem:
    """``R`` runs of ``T`` rounds.

    Attributes:
        contexts: ``(R, T, d)`` in float32.
        rewards: ``(R, T, A)``, in float32.
        optimal: What the reward is divided by: that of the optimal policy, ``(R, T)``, in float64.
    """

    contexts: Tensor
    rewards: Tensor
    optimal: Tensor


def problem(name: str, rounds: int, seeds: Sequence[int]) -> Problem:
    """A problem of the table, or ``"wheel-0.95"`` for the wheel with this delta; one run per seed."""
    if name.startswith("wheel-"):
        delta = float(name.removeprefix("wheel-"))
        tables = [wheel(np.random.default_rng([seed, 7]), rounds, delta) for seed in seeds]
    else:
        make = MAKERS[name]
        tables = [make(np.random.default_rng([seed, 7]), rounds) for seed in seeds]
    contexts, rewards, optimal = (np.stack(part) for part in zip(*tables, strict=True))
    return Problem(torch.from_numpy(contexts).float(), torch.from_numpy(rewards).float(), torch.from_numpy(optimal))


def mushroom(rng: np.random.Generator, rounds: int) -> Table:
    """Eat (action 1) or not: edible +5; poisonous +5 or -35, each with probability 1/2. Rows drawn with replacement.

    The optimal policy's reward is the expected one: 5 for an edible mushroom, else 0.
    """
    data = ba.data.load("bandits/mushroom")
    rows = rng.integers(len(data.x), size=rounds)
    edible = data.y[rows].numpy() == 1
    eaten = np.where(edible | (rng.random(rounds) < 0.5), 5.0, -35.0)
    return data.x[rows].double().numpy(), np.stack([np.zeros(rounds), eaten], axis=1), np.where(edible, 5.0, 0.0)


def financial(rng: np.random.Generator, rounds: int) -> Table:
    """Eight portfolios: random weights of norm 1 on 21 price differences, with noise of 0.01 to 0.08."""
    x = _rows("financial", rng, rounds)[0]
    weights = rng.uniform(-1.0, 1.0, (x.shape[1], 8))
    means = x @ (weights / np.linalg.norm(weights, axis=0))
    noise = 0.01 * np.arange(1, 9) * rng.standard_normal(means.shape)
    return x, means + noise, means.max(axis=1)


def jester(rng: np.random.Generator, rounds: int) -> Table:
    """Which of eight jokes, given the ratings of 32 others. The division of the jokes is the same in all runs."""
    ratings, _ = _rows("jester", rng, rounds)
    ratings = ratings[:, np.random.default_rng(JOKES).permutation(ratings.shape[1])]
    return ratings[:, :32], ratings[:, 32:], ratings[:, 32:].max(axis=1)


def _classes(name: str) -> Callable[[np.random.Generator, int], Table]:
    """Reward 1 for the right label; features are standardised over the rows of the run."""

    def make(rng: np.random.Generator, rounds: int) -> Table:
        x, y = _rows(name, rng, rounds)
        spread = x.std(axis=0)
        x = (x - x.mean(axis=0)) / np.where(spread == 0, 1.0, spread)
        return x, np.eye(NUM_ACTIONS[name])[y], np.ones(rounds)

    return make


def wheel(rng: np.random.Generator, rounds: int, delta: float) -> Table:
    """Contexts uniform in the unit disc. Action 0 pays 1.2, the others 1, but one pays 50 outside of radius ``delta``.

    Which one it is depends on the quadrant (Riquelme et al. 2018, section 5.4).
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
    """The first rows of a new order."""
    data = ba.data.load(f"bandits/{name}")
    x, y = (data.x_train, data.y_train) if name == "statlog" else (data.x, data.y)
    rows = torch.from_numpy(rng.permutation(len(x))[:rounds])
    return x[rows].double().numpy(), y[rows].numpy()


NUM_ACTIONS = {"mushroom": 2, "financial": 8, "jester": 8, "statlog": 7, "adult": 14, "covertype": 7}

MAKERS: dict[str, Callable[[np.random.Generator, int], Table]] = {
    "mushroom": mushroom,
    "financial": financial,
    "jester": jester,
    "statlog": _classes("statlog"),
    "adult": _classes("adult"),
    "covertype": _classes("covertype"),
}
