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
    """First in, first out; minibatches are drawn uniformly, with replacement.

    Args:
        size: How many transitions it keeps.
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
        """Keep a transition, in the place of the oldest if there is no more."""
        self.rows[self.added % len(self.rows)] = np.concatenate((state, action, (reward, terminal), following))
        self.added += 1

    def draw(self, size: int, rng: np.random.Generator) -> list[Tensor]:
        """States, actions, rewards, whether it was the last of an episode, and the states that followed."""
        rows = torch.from_numpy(self.rows[rng.integers(len(self), size=size)])
        return list(torch.tensor_split(rows, self._parts, dim=1))


class DDPG:
    """Actor, critic, their targets and optimisers.

    Args:
        config: The unit's.
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
        """Inside, the actor has one sample of its weights, if the method has noise; its gradient is for ``step``."""
        if isinstance(self.optimizer, ba.optim.PerturbedOptimizer):
            return self.optimizer.sampled_params()
        return nullcontext()

    @torch.no_grad()
    def act(self, states: Array) -> Array:
        """Actions of the weights that the actor has at present, one row for each state."""
        actions: Array = self.actor(torch.from_numpy(states)).numpy()
        return actions

    @torch.no_grad()
    def learn(self, states: Tensor, actions: Tensor, rewards: Tensor, terminal: Tensor, following: Tensor) -> None:
        """A step of the critic; then the gradient of the actor, the **sum** over the minibatch as in their code."""
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
        """A step of the actor's mean, outside of ``explored``, and of the targets, which follow means."""
        self.optimizer.step()
        for network, target in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
            target.weights.lerp_(network.weights, self.rate)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint, between two steps."""
        optimizers = {name: getattr(self, name).state_dict() for name in ("optimizer", "critic_optimizer")}
        return {"weights": [network.weights.detach() for network in self._networks()], **optimizers}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        for network, weights in zip(self._networks(), state["weights"], strict=True):
            network.weights.copy_(weights)
        for name in ("optimizer", "critic_optimizer"):
            getattr(self, name).load_state_dict(state[name])

    def _networks(self) -> tuple[Actor | Critic, ...]:
        return self.actor, self.actor_target, self.critic, self.critic_target
