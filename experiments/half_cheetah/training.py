"""Deep deterministic policy gradients with noise in the actor's weights (Khan et al. 2018, appendix K).

Actor and critic, their initial values and the loop are those of the published code.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import bayesadam as ba
from experiments.framework import Context, save
from experiments.half_cheetah.methods import optimizer_of

if TYPE_CHECKING:
    import gymnasium

Array = npt.NDArray[np.float32]
Shape = tuple[int, ...]


class Network:
    """A function of one vector of weights, so that the noise of all weights is one draw."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes, self.sizes = shapes, [math.prod(shape) for shape in shapes]
        self.weights = nn.Parameter(torch.zeros(sum(self.sizes)))

    def parts(self) -> list[Tensor]:
        """Return the matrices and biases, which are views of the vector."""
        parts = torch.split(self.weights, self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class Actor(Network):
    """Two hidden layers of ReLU; ``tanh`` times the bound of the actions.

    Weights start as ``N(0, 0.3^2)``, those of the output as ``U(-0.003, 0.003)``; all biases are 0.1.
    """

    @torch.no_grad()
    def __init__(
        self, inputs: int, actions: int, hidden: Sequence[int], bound: float, generator: torch.Generator
    ) -> None:
        first, second = hidden
        super().__init__([(first, inputs), (first,), (second, first), (second,), (actions, second), (actions,)])
        self.bound, parts = bound, self.parts()
        for matrix in (parts[0], parts[2]):
            matrix.normal_(0.0, 0.3, generator=generator)
        parts[4].uniform_(-0.003, 0.003, generator=generator)
        for bias in parts[1::2]:
            bias.fill_(0.1)

    def __call__(self, states: Tensor) -> Tensor:
        """Return actions ``(n, actions)`` for states ``(n, inputs)``."""
        matrix_1, bias_1, matrix_2, bias_2, matrix_3, bias_3 = self.parts()
        hidden = torch.addmm(bias_1, states, matrix_1.t()).relu_()
        hidden = torch.addmm(bias_2, hidden, matrix_2.t()).relu_()
        return torch.addmm(bias_3, hidden, matrix_3.t()).tanh_() * self.bound


class Critic(Network):
    """Two hidden layers of ReLU and a linear output. The action is an input of the second layer.

    Weights start as ``N(0, 0.02^2)`` cut at two standard deviations, those of the output as ``U(-0.003, 0.003)``;
    biases are 0.
    """

    @torch.no_grad()
    def __init__(self, inputs: int, actions: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        first, second = hidden
        shapes = [(first, inputs), (first,), (second, first), (second,), (1, second), (1,), (second, actions)]
        super().__init__(shapes)
        parts = self.parts()
        for matrix in (parts[0], parts[2], parts[6]):
            nn.init.trunc_normal_(matrix, std=0.02, a=-0.04, b=0.04, generator=generator)
        parts[4].uniform_(-0.003, 0.003, generator=generator)

    def __call__(self, states: Tensor, actions: Tensor) -> Tensor:
        """Return values, ``(n, 1)``."""
        matrix_1, bias_1, matrix_2, bias_2, matrix_3, bias_3, action = self.parts()
        hidden = torch.addmm(bias_1, states, matrix_1.t()).relu_()
        hidden = torch.addmm(bias_2, hidden, matrix_2.t()).addmm_(actions, action.t()).relu_()
        return torch.addmm(bias_3, hidden, matrix_3.t())


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

    def learn(self, states: Tensor, actions: Tensor, rewards: Tensor, terminal: Tensor, following: Tensor) -> None:
        """Step the critic, and compute the actor's gradient: the **sum** over the minibatch, as in their code."""
        critic, actor = self.critic, self.actor
        with torch.no_grad():
            future = self.critic_target(following, self.actor_target(following))
            goal = rewards + self.discount * (1.0 - terminal) * future
        value = critic(states, actions)
        slope = (value.detach() - goal) * (2.0 / len(states))
        critic.weights.grad = torch.autograd.grad(value, critic.weights, slope)[0]
        self.critic_optimizer.step()
        actor.weights.grad = torch.autograd.grad(-critic(states, actor(states)).sum(), actor.weights)[0]

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


def learn(config: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Train an agent, from the last checkpoint in the folder if there is one.

    Every episode has its own seeds, so that a resumed training has the same result as an uninterrupted one.

    Returns:
        ``"episodes"``: numbers, counted from 0, of the episodes after which the mean was evaluated. ``"returns"``: the
        undiscounted return of every test episode of each evaluation. ``"training"``: the return of every training
        episode.
    """
    import gymnasium

    env, *tests = (gymnasium.make(config["environment"]) for _ in range(1 + config["tests"]))
    inputs, actions = env.observation_space.shape[0], env.action_space.shape[0]  # type: ignore[index]
    agent = DDPG(config, inputs, actions, float(env.action_space.high[0]))  # type: ignore[attr-defined]
    replay = Replay(min(config["replay"], config["episodes"] * config["steps"]), inputs, actions)
    found: dict[str, Any] = {"episodes": [], "returns": [], "training": []}
    path = context.folder / "state.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.is_file():
            found = _load(path, agent, replay)
        for episode in range(len(found["training"]), config["episodes"]):
            found["training"].append(_train(agent, replay, env, config, episode))
            if episode % config["every"] == 0:
                found["episodes"].append(episode)
                found["returns"].append(evaluate(agent, tests, config, episode))
                rows = torch.from_numpy(replay.rows[: len(replay)])
                save(path, {"agent": agent.state_dict(), "rows": rows, "added": replay.added, "found": found})
                note = f"episode {episode}: {float(np.mean(found['returns'][-1])):.0f}"
                context.progress(episode + 1, config["episodes"], note)
    for each in (env, *tests):
        each.close()
    return found


def _load(path: Path, agent: DDPG, replay: Replay) -> dict[str, Any]:
    """Restore a checkpoint, and return the evaluations so far."""
    state = torch.load(path)
    agent.load_state_dict(state["agent"])
    replay.rows[: len(state["rows"])] = state["rows"].numpy()
    replay.added = state["added"]
    found: dict[str, Any] = state["found"]
    return found


def _seed(*numbers: int) -> int:
    """Return a different seed for every purpose, seed and episode."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _train(agent: DDPG, replay: Replay, env: gymnasium.Env[Any, Any], config: Mapping[str, Any], episode: int) -> float:
    """Train for one episode, and return its return.

    The sample of the weights that chooses the action in a step is also used for the gradient in this step.
    """
    rng = np.random.default_rng([2, config["seed"], episode])
    state = env.reset(seed=_seed(1, config["seed"], episode))[0].astype(np.float32)
    total, last = 0.0, False
    for number in range(config["steps"]):
        with agent.explored():
            action = agent.act(state[None])[0]
            following, reward, terminated, truncated, _ = env.step(action)
            following = following.astype(np.float32)
            last = terminated or truncated or number == config["steps"] - 1
            replay.add(state, action, float(reward), last, following)
            ready = len(replay) > config["batch_size"]
            if ready:
                agent.learn(*replay.draw(config["batch_size"], rng))
        if ready:
            agent.step()
        else:
            agent.optimizer.zero_grad()
        state, total = following, total + float(reward)
        if last:
            break
    return total


def evaluate(agent: DDPG, tests: list[gymnasium.Env[Any, Any]], config: Mapping[str, Any], episode: int) -> list[float]:
    """Evaluate the mean in one test episode per environment, all side by side."""
    seeds = [_seed(3, config["seed"], episode, number) for number in range(len(tests))]
    states = np.stack([env.reset(seed=seed)[0] for env, seed in zip(tests, seeds, strict=True)]).astype(np.float32)
    returns, running = np.zeros(len(tests)), np.ones(len(tests), bool)
    for _ in range(config["steps"]):
        actions = agent.act(states)
        for i in np.flatnonzero(running):
            states[i], reward, terminated, truncated, _ = tests[i].step(actions[i])
            returns[i] += float(reward)
            running[i] = not (terminated or truncated)
        if not running.any():
            break
    return [round(float(value), 3) for value in returns]
