"""Small agents and a problem whose best actions are known."""

import numpy as np
import pytest
import torch

from bayesadam import bandits

NETWORK = {"hidden": (16,), "steps": 5, "batch_size": 32, "train_every": 10}
METHODS = (*bandits.RULES, *bandits.POINTS)


def belief(name):
    """A belief by the name of its method."""
    return bandits.Linear() if name == "linear" else bandits.Neural(name, **NETWORK)


@pytest.fixture
def problem():
    """Contexts ``(200, 3)`` and noiseless linear rewards ``(200, 4)``."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 3))
    return x, x @ rng.normal(size=(3, 4))


def play(agent, problem, rounds, noise=0.0, start=0):
    """Shares of what the best actions earn, round by round."""
    x, means = problem
    rng = np.random.default_rng(9)
    earned = []
    for t in range(start, start + rounds):
        row = t % len(x)
        action = agent.act(x[row])
        agent.partial_fit([action], [means[row, agent.actions.index(action)] + noise * rng.normal()], [x[row]])
        earned.append((means[row, agent.actions.index(action)], means[row].max()))
    return np.array(earned)


def same(one, other):
    """Whether two agents have the same tensors."""
    first, second = one._agents.tensors(), other._agents.tensors()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
