"""The work of one unit: agents with several seeds play one problem in lock step."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from bayesadam import bandits
from experiments.bandits.problems import Problem, problem
from experiments.experiment import Progress
from experiments.files import replacing

EVERY = 120.0
"""Minimum time in seconds between two checkpoints."""
POINTS = 50
"""Number of points of a curve."""
FIRST = 20
"""Number of rounds before the first point of a curve."""


def agents(config: Mapping[str, Any], game: Problem) -> bandits.Agents:
    """Create the agents of a unit, before their first round."""
    belief: bandits.Linear | bandits.Neural
    if config["belief"] == "linear":
        belief = bandits.Linear(**config["options"], standardize=False)  # as Riquelme et al. 2018
    else:
        belief = bandits.Neural(**config["options"])
        if _told_all(config):  # trained after as many rounds as the others
            belief = replace(belief, train_every=belief.train_every * game.rewards.shape[2])
    return bandits.Agents(
        belief,
        num_features=game.contexts.shape[2],
        num_actions=game.rewards.shape[2],
        seeds=range(config["runs"]),
        policy=config.get("policy", "thompson"),
    )


def play(config: Mapping[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """Play all rounds. A killed run is resumed from its last checkpoint, and its result is that of an uninterrupted
    run.

    Returns:
        ``"ratio"``: the cumulative reward of every run, divided by that of the optimal policy. ``"second_half"``: the
        same ratio for the second half of the rounds. ``"curve"``: the cumulative ratio of all runs together after each
        number of rounds in ``"rounds"``.
    """
    rounds, runs = config["rounds"], config["runs"]
    game = problem(config["problem"], rounds, range(runs))
    players = agents(config, game)
    earned = np.zeros((runs, rounds))
    start = _resume(folder, players, earned)
    saved = time.monotonic()
    rows = torch.arange(runs)
    for t in range(start, rounds):
        context = game.contexts[:, t : t + 1]
        actions = torch.from_numpy(players.act(context)[..., 0])
        rewards = game.rewards[rows, t, actions[:, 0]]
        earned[:, t] = rewards.double().numpy()
        if _told_all(config):
            everything = torch.arange(game.rewards.shape[2]).expand(runs, -1)
            players.observe(context.expand(-1, everything.shape[1], -1), everything, game.rewards[:, t])
        else:
            players.observe(context, actions, rewards[:, None])
        if t % 20 == 0:
            progress(t, rounds)
            if time.monotonic() - saved > EVERY:
                _save(folder, players, earned, t + 1)
                saved = time.monotonic()
    return _scores(earned, game.optimal.numpy())


def _told_all(config: Mapping[str, Any]) -> bool:
    """Whether the agents are told the rewards of all actions."""
    return config.get("told") == "all"


def _scores(earned: NDArray[np.float64], optimal: NDArray[np.float64]) -> dict[str, Any]:
    half = earned.shape[1] // 2
    first = min(FIRST, earned.shape[1])
    shown = np.unique(np.linspace(first, earned.shape[1], POINTS).round().astype(int))
    # The ratio is that of the sums over all runs, because the optimal reward of a single run may be 0 for some rounds.
    curve = earned.sum(0).cumsum()[shown - 1] / optimal.sum(0).cumsum()[shown - 1]
    return {
        "ratio": earned.sum(1) / optimal.sum(1),
        "second_half": earned[:, half:].sum(1) / optimal[:, half:].sum(1),
        "rounds": shown,
        "curve": curve.round(4),
    }


def _save(folder: Path, players: bandits.Agents, earned: NDArray[np.float64], done: int) -> None:
    tensors = {"earned": torch.from_numpy(earned), **players.tensors()}
    facts = json.dumps({"done": done, "agents": players.facts()})
    with replacing(folder / "agents.safetensors") as path:
        save_file({name: value.clone().contiguous() for name, value in tensors.items()}, path, {"facts": facts})


def _resume(folder: Path, players: bandits.Agents, earned: NDArray[np.float64]) -> int:
    """Restore the last checkpoint, if there is one, and return the number of completed rounds."""
    path = folder / "agents.safetensors"
    if not path.is_file():
        return 0
    with safetensors.safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    earned[:] = tensors.pop("earned").numpy()
    players.restore(tensors, facts["agents"])
    done: int = facts["done"]
    return done
