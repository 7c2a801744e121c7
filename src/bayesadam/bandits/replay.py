"""The observations of agents, and minibatches of them for training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from bayesadam.population.batches import Batch, order

_GATHERED = 2**22
"""Approximate memory in bytes of the contexts that are gathered at a time."""


class Replay:
    """Contexts, actions and rewards of ``P`` agents that have made the same number of observations.

    Args:
        agents: Number of agents ``P``.
        num_features: Length ``d`` of a context.

    Attributes:
        size: Number of observations of each agent.
    """

    def __init__(self, agents: int, num_features: int) -> None:
        self.size = 0
        self._contexts = torch.empty(agents, 0, num_features)
        self._actions = torch.empty(agents, 0, dtype=torch.int64)
        self._rewards = torch.empty(agents, 0)

    @property
    def contexts(self) -> Tensor:
        """Contexts, ``(P, n, d)``, as a view."""
        return self._contexts[:, : self.size]

    @property
    def actions(self) -> Tensor:
        """Numbers of the chosen actions, ``(P, n)``, as a view."""
        return self._actions[:, : self.size]

    @property
    def rewards(self) -> Tensor:
        """Rewards, ``(P, n)``, as a view."""
        return self._rewards[:, : self.size]

    def add(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Append contexts ``(P, m, d)``, actions ``(P, m)`` and rewards ``(P, m)``. Full memory is doubled."""
        needed = self.size + contexts.shape[1]
        if needed > self._contexts.shape[1]:
            room = max(needed, 2 * self._contexts.shape[1], 64)
            for name in ("_contexts", "_actions", "_rewards"):
                old: Tensor = getattr(self, name)
                new = old.new_zeros(len(old), room, *old.shape[2:])
                new[:, : self.size] = old[:, : self.size]
                setattr(self, name, new)
        part = slice(self.size, needed)
        self._contexts[:, part], self._actions[:, part], self._rewards[:, part] = contexts, actions, rewards
        self.size = needed

    def minibatches(
        self, steps: int, batch_size: int, *, seeds: Sequence[int], number: int, shift: Tensor, scale: Tensor
    ) -> Iterator[Batch]:
        """Yield minibatches drawn with replacement; targets are the action's number and the reward, ``(P, M, 2)``.

        Args:
            steps: Number of minibatches.
            batch_size: Size ``M`` of a minibatch.
            seeds: Seeds of the agents.
            number: Number of this training. The order depends only on the seed and this number.
            shift: Shift subtracted from the rewards, ``(P, 1)``.
            scale: Divisor of the shifted rewards, ``(P, 1)``.
        """
        drawn = [order(self.size, seed=s, epoch=number, replacement=True, size=steps * batch_size) for s in seeds]
        rows = torch.stack([torch.from_numpy(own) for own in drawn])
        rewards = (self.rewards - shift) / scale
        targets = torch.stack([self.actions.to(rewards.dtype), rewards], dim=2).flatten(0, 1)
        starts = torch.arange(len(rows))[:, None]
        contexts, room, width = self._contexts.flatten(0, 1), self._contexts.shape[1], self._contexts.shape[2]
        several = max(1, _GATHERED // (4 * len(rows) * batch_size * width))
        for first in range(0, steps, several):
            here = rows[:, first * batch_size : (first + several) * batch_size]
            here = here.view(len(rows), -1, batch_size).transpose(0, 1)  # step, agent, row
            x = contexts.index_select(0, (here + starts * room).flatten()).view(*here.shape, width)
            y = targets.index_select(0, (here + starts * self.size).flatten()).view(*here.shape, 2)
            for own_x, own_y in zip(x.unbind(0), y.unbind(0), strict=True):
                yield Batch(own_x, own_y, None)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to be saved."""
        return {"contexts": self.contexts, "actions": self.actions, "rewards": self.rewards}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of :meth:`tensors`."""
        self.size = 0
        self.add(tensors["contexts"], tensors["actions"], tensors["rewards"])
