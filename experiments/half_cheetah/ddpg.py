"""Deep deterministic policy gradients with noise in the actor's weights (Khan et al. 2018, appendix K)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import bayesadam as ba
from experiments.half_cheetah.methods import optimizer_of
from experiments.half_cheetah.networks import Actor, Critic

Array = npt.NDArray[np.float32]


class Replay:
    """A buffer of the latest transitions, from which minibatches are drawn uniformly with replacement.

    Args:
        size: Maximum number of transitions.
        inputs: Length of a state.
        actions: Length of an action.
    """

    def __init__(self, size: int, inputs: int, actions: int) -> None:
        self.rows = np.empty((size, 2 * inputs + actions + 2), np.float32)
        self.added = 0
        self._parts = np.cumsum([inputs, actions, 1, 1]).tolist()

    def __len__(self) -> int:
        return min(self.added, len(self.rows))

    def add(self, state: Array, action: Array, reward: float, terminal: bool, following: Array) -> None:
        """Add a transition, which replaces the oldest one if the buffer is full."""
        self.rows[self.added % len(self.rows)] = np.concatenate((state, action, (reward, terminal), following))
        self.added += 1

    def draw(self, size: int, rng: np.random.Generator) -> list[Tensor]:
        """Return states, actions, rewards, flags of the last step of an episode, and the next states."""
        rows = torch.from_numpy(self.rows[rng.integers(len(self), size=size)])
        return list(torch.tensor_split(rows, self._parts, dim=1))


class DDPG:
    """Actor and critic with their target networks and optimisers.

    Args:
        config: Config of the unit.
        inputs: Length of a state.
        actions: Length of an action.
        bound: Largest action.
    """

    def __init__(self, config: Mapping[str, Any], inputs: int, actions: int, bound: float) -> None:
        generator = torch.Generator().manual_seed(config["seed"])
        hidden = config["hidden"]
        self.actor, self.actor_target = (Actor(inputs, actions, hidden, bound, generator) for _ in range(2))
        self.critic, self.critic_target = (Critic(inputs, actions, hidden, generator) for _ in range(2))
        self.optimizer = optimizer_of(config["method"], config["settings"], self.actor.weights, config["seed"])
        self.critic_optimizer = torch.optim.Adam([self.critic.weights], lr=config["critic_lr"], fused=True)
        self.discount, self.rate = config["discount"], config["target_rate"]

    def explored(self) -> AbstractContextManager[None]:
        """Context in which the actor has one sample of its weights if the method has noise; ``step`` uses it."""
        if isinstance(self.optimizer, ba.optim.PerturbedOptimizer):
            return self.optimizer.sampled_params()
        return nullcontext()

    @torch.no_grad()
    def act(self, states: Array) -> Array:
        """Return the actions of the actor with its current weights, one row per state."""
        actions: Array = self.actor(torch.from_numpy(states)).numpy()
        return actions

    @torch.no_grad()
    def learn(self, states: Tensor, actions: Tensor, rewards: Tensor, terminal: Tensor, following: Tensor) -> None:
        """Step the critic, and compute the actor's gradient: the **sum** over the minibatch, as in their code."""
        critic, actor = self.critic, self.actor
        value = self.critic_target(following, self.actor_target(following))
        goal = rewards + self.discount * (1.0 - terminal) * value
        error = critic(states, actions) - goal
        critic.backward(states, actions, error * (2.0 / len(states)))
        critic.weights.grad = critic.gradient
        self.critic_optimizer.step()
        critic(states, actor(states))
        actor.backward(states, -critic.action_gradient())
        actor.weights.grad = actor.gradient

    @torch.no_grad()
    def step(self) -> None:
        """Step the actor's mean, outside ``explored``, and the target networks, which follow the means."""
        self.optimizer.step()
        for network, target in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
            target.weights.lerp_(network.weights, self.rate)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, between two steps."""
        optimizers = {name: getattr(self, name).state_dict() for name in ("optimizer", "critic_optimizer")}
        return {"weights": [network.weights.detach() for network in self._networks()], **optimizers}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        for network, weights in zip(self._networks(), state["weights"], strict=True):
            network.weights.copy_(weights)
        for name in ("optimizer", "critic_optimizer"):
            getattr(self, name).load_state_dict(state[name])

    def _networks(self) -> tuple[Actor | Critic, ...]:
        return self.actor, self.actor_target, self.critic, self.critic_target
