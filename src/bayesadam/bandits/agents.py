"""``P`` agents in lock step: the loop of a bandit, for one agent or for several agents with different seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam.bandits.belief import Belief
from bayesadam.bandits.replay import Replay
from bayesadam.checks import check, is_whole

POLICIES = ("thompson", "greedy", "epsilon-greedy", "uniform")
_STREAM = 1
"""Stream of the random choices; stream 0 is the order of minibatches."""


class Agents:
    """Agents that differ only in their seeds. Each has its own history, and all are trained together.

    Rounds are those of :class:`Agent`. All arguments and results have a leading axis for the ``P`` agents, which make
    the same number of rounds and of observations. Agent ``p`` does what a single agent with the same seed would do, up
    to rounding; only the masks of dropout in training are drawn for all agents together.

    Args:
        belief: Model of the rewards: :class:`Neural`, :class:`Linear` or :class:`Refit`.
        num_features: Length of a context.
        num_actions: Number of actions, at least 2.
        seeds: One seed per agent, for initial weights, minibatches, posterior samples and random choices.
        policy: Policy, as for :class:`Agent`.
        epsilon: Probability of a random action, as for :class:`Agent`.
        warm_up: Number of times that every action is first chosen, as for :class:`Agent`.

    Attributes:
        rounds: Number of decisions so far.
        replay: The observations so far.
    """

    def __init__(
        self,
        belief: Belief,
        *,
        num_features: int,
        num_actions: int,
        seeds: Sequence[int],
        policy: str = "thompson",
        epsilon: float = 0.05,
        warm_up: int = 3,
    ) -> None:
        if not isinstance(belief, Belief):
            raise ValueError(f"belief must be a Neural, a Linear or another Belief, got {belief!r}")
        check("num_features", num_features, "a whole number of at least 1", is_whole)
        check("num_actions", num_actions, "a whole number of at least 2", lambda v: is_whole(v, 2))
        check("warm_up", warm_up, "a whole number of at least 0", lambda v: is_whole(v, 0))
        check("epsilon", epsilon, "in [0, 1]", lambda v: 0 <= v <= 1)
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {POLICIES}, got {policy!r}")
        seeds = list(seeds)
        if not seeds or not all(is_seed(seed) for seed in seeds):
            raise ValueError(f"seeds must be one or more integers in [0, 2**64), got {seeds!r}")
        seeds = [int(seed) for seed in seeds]
        self.belief, self.policy, self.epsilon, self.warm_up = belief, policy, float(epsilon), int(warm_up)
        self.num_features, self.num_actions, self.seeds = int(num_features), int(num_actions), seeds
        self.learner = belief.start(self.num_features, self.num_actions, seeds)
        self.replay = Replay(len(seeds), self.num_features)
        self.rounds = 0
        self._pulls = np.zeros((len(seeds), self.num_actions), dtype=np.int64)
        self._observed = np.zeros_like(self._pulls)

    def scores(self, contexts: Tensor, *, number: int | None = None, seeds: Sequence[int] | None = None) -> Tensor:
        """Return expected rewards ``(P, n, A)`` in contexts ``(P, n, d)`` at a posterior sample or the mean.

        Raises:
            ValueError: Contexts are of another shape or not finite, or the number of seeds is not ``P``.
        """
        self._check_contexts(contexts)
        if seeds is not None and len(seeds) != len(self.seeds):
            raise ValueError(f"seeds must be one for each of {len(self.seeds)} agents, got {list(seeds)!r}")
        return self.learner.scores(contexts, number, seeds)

    def act(self, contexts: Tensor, *, count: int = 1, per_row: bool = False) -> NDArray[np.int64]:
        """Choose actions for every context; this is one round, with one posterior sample.

        Args:
            contexts: Contexts, ``(P, n, d)``.
            count: Number of different actions to choose, the best first.
            per_row: Whether every row is a round of its own, with its own posterior sample.

        Returns:
            Numbers of the actions, ``(P, n, count)``.
        """
        check("count", count, f"a whole number from 1 to {self.num_actions}", self._is_count)
        self._check_contexts(contexts)
        if per_row:
            rows = [self.act(contexts[:, row : row + 1], count=count) for row in range(contexts.shape[1])]
            return np.concatenate([np.empty((len(self.seeds), 0, count), dtype=np.int64), *rows], axis=1)
        number, pulls = self.rounds, self._pulls.copy()
        chosen = np.empty((*contexts.shape[:2], count), dtype=np.int64)
        agents = np.arange(len(pulls))[:, None]
        decided = None
        for row in range(contexts.shape[1]):
            # Actions in their warm-up come first, and among them the actions that were tried least often.
            waiting = pulls < self.warm_up
            first = np.where(waiting, pulls, self.warm_up)
            if (waiting.sum(axis=1) >= count).all():
                order = np.argsort(first, axis=1, kind="stable")
            else:
                decided = self._decided(contexts, number) if decided is None else decided
                ranks = np.argsort(decided[:, row], axis=1)
                tried = np.where(waiting, np.arange(self.num_actions), ranks)
                order = np.lexsort((tried, first), axis=1)
            chosen[:, row] = order[:, :count]
            pulls[agents, chosen[:, row]] += 1
        self.rounds, self._pulls = number + 1, pulls
        return chosen

    def _is_count(self, value: int) -> bool:
        return is_whole(value) and value <= self.num_actions

    def _decided(self, contexts: Tensor, number: int) -> NDArray[np.int64]:
        """Return all actions in the order in which the policy prefers them, ``(P, n, A)``."""
        if self.policy == "thompson":
            return _ordered(self.learner.scores(contexts, number))
        generators = [
            np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, _STREAM, number])) for seed in self.seeds
        ]
        shape = (contexts.shape[1], self.num_actions)
        random = np.stack([own.random(shape).argsort(axis=1) for own in generators])
        if self.policy == "uniform":
            return random
        greedy = _ordered(self.learner.scores(contexts, None))
        if self.policy == "greedy":
            return greedy
        explored = np.stack([own.random((shape[0], 1)) < self.epsilon for own in generators])
        return np.where(explored, random, greedy)

    def observe(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Learn from rewards, and train after every ``train_every`` observations.

        Args:
            contexts: Contexts, ``(P, n, d)``.
            actions: Numbers of the actions, ``(P, n)``.
            rewards: Rewards, ``(P, n)``.

        Raises:
            ValueError: A tensor is of another shape, a context or reward is not finite, or there is no such action;
                nothing has changed. Nothing has changed either if the training raises an error.
        """
        self._check_contexts(contexts)
        expected = tuple(contexts.shape[:2])
        for name, part in (("actions", actions), ("rewards", rewards)):
            if part.shape != expected:
                raise ValueError(f"{name} must be of shape {expected}, got {tuple(part.shape)}")
        if not rewards.isfinite().all():
            raise ValueError("rewards must be finite, got inf or nan")
        if actions.numel() and not (0 <= int(actions.min()) and int(actions.max()) < self.num_actions):
            raise ValueError(f"actions must be from 0 to {self.num_actions - 1}, got {actions.tolist()!r}")
        size, every = self.replay.size, self.train_every
        trains = every is not None and self.policy != "uniform" and size % every + actions.shape[1] >= every
        undo = self.learner.undo() if trains else None
        try:
            self._learn(contexts, actions, rewards)
        except BaseException:
            if undo is not None:
                undo()
                self.replay.size = size
            raise
        rows = np.arange(len(self._observed))[:, None]
        np.add.at(self._observed, (np.broadcast_to(rows, tuple(actions.shape)), actions.numpy()), 1)
        self._pulls = np.maximum(self._pulls, self._observed)

    def _learn(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Store observations, up to the next training at a time, and train."""
        every = self.train_every
        first, count = 0, actions.shape[1]
        while first < count:
            size = self.replay.size
            part = slice(first, count if every is None else min(count, first + every - size % every))
            self.replay.add(contexts[:, part], actions[:, part], rewards[:, part])
            first = part.stop
            self.learner.observe(self.replay, part.stop - part.start)
            if every is not None and self.replay.size % every == 0 and self.policy != "uniform":
                self.learner.train(self.replay, self.replay.size // every - 1)

    def _check_contexts(self, contexts: Tensor) -> None:
        agents = len(self.seeds)
        if contexts.ndim != 3 or contexts.shape[0] != agents or contexts.shape[2] != self.num_features:
            expected = f"of shape ({agents}, n, {self.num_features})"
            raise ValueError(f"contexts must be {expected}, got {tuple(contexts.shape)}")
        if not contexts.isfinite().all():
            raise ValueError("contexts must be finite, got inf or nan")

    @property
    def train_every(self) -> int | None:
        """Number of observations between two trainings; ``None`` for a belief that is not trained."""
        return getattr(self.belief, "train_every", None)

    def add_actions(self, count: int = 1) -> None:
        """Add actions, which are warmed up like the first ones."""
        check("count", count, "a whole number of at least 1", is_whole)
        count = int(count)
        self.learner.grow(count)
        self.num_actions += count
        self._pulls, self._observed = (
            np.concatenate([part, np.zeros((len(part), count), dtype=np.int64)], axis=1)
            for part in (self._pulls, self._observed)
        )

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the class except the belief, as JSON values."""
        names = ("num_features", "num_actions", "seeds", "policy", "epsilon", "warm_up")
        return {name: getattr(self, name) for name in names}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state, to be saved with :meth:`facts`."""
        found = {"pulls": torch.from_numpy(self._pulls), "observed": torch.from_numpy(self._observed)}
        found |= {f"replay/{name}": value for name, value in self.replay.tensors().items()}
        return found | {f"learner/{name}": value for name, value in self.learner.tensors().items()}

    def facts(self) -> dict[str, Any]:
        """Return the other values of the state, as JSON values."""
        return {"rounds": self.rounds, "learner": self.learner.facts()}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore the results of :meth:`tensors` and :meth:`facts`; the agents then continue like the saved ones."""
        parts: dict[str, dict[str, Tensor]] = {"replay": {}, "learner": {}}
        for name, value in tensors.items():
            part, _, rest = name.partition("/")
            if rest:
                parts[part][rest] = value
        self.replay.restore(parts["replay"])
        self.learner.restore(parts["learner"], facts["learner"])
        self._pulls, self._observed = (tensors[name].numpy().copy() for name in ("pulls", "observed"))
        self.rounds = facts["rounds"]


def is_seed(value: Any) -> bool:
    """Whether a value is an integer that can be a seed."""
    return is_whole(value, 0) and value < 2**64


def _ordered(scores: Tensor) -> NDArray[np.int64]:
    """Return the numbers of the actions, the best first."""
    return np.asarray(scores.argsort(dim=2, descending=True, stable=True).numpy())
