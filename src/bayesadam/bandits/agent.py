"""A single agent for applications, with labels for actions, inputs of any array type, and checks of all arguments."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam import files
from bayesadam.bandits import storage
from bayesadam.bandits.agents import Agents, is_seed
from bayesadam.bandits.belief import Belief
from bayesadam.bandits.neural import Neural
from bayesadam.checks import check


class Agent:
    """A contextual bandit, which sees a context, chooses an action, and learns from the rewards of the chosen actions.

    ::

        agent = ba.bandits.Agent(num_features=5, actions=["red", "green", "blue"])
        action = agent.act(context)
        agent.partial_fit([action], [reward], [context])   # now or later, one by one or many at once

    Every call of :meth:`act` is a round: it takes the next posterior sample, and chooses the action that is best under
    it (Thompson sampling). Rewards may arrive late, in any order and in batches of any size; the network is trained
    once for every ``belief.train_every`` of them.

    Args:
        belief: Model of the rewards; default ``Neural()``.
        num_features: Length of a context. Contexts should be scaled to features of about -3 to 3.
        actions: Number of actions, or their labels, which are numbers or text.
        policy: ``"thompson"``; ``"greedy"``, which chooses the best action at the posterior mean; ``"epsilon-greedy"``,
            which chooses a random action with probability ``epsilon`` and otherwise the best action at the posterior
            mean; or ``"uniform"``, which chooses random actions and does not train.
        epsilon: Probability of a random action for ``"epsilon-greedy"``, in [0, 1].
        warm_up: Number of times that every action is first chosen, in turn.
        seed: Seed of all random numbers. The same calls with the same seed give the same actions.

    Raises:
        ValueError: An argument is out of its range, or labels are not unique.
    """

    def __init__(
        self,
        belief: Belief | None = None,
        *,
        num_features: int,
        actions: int | Sequence[Hashable],
        policy: str = "thompson",
        epsilon: float = 0.05,
        warm_up: int = 3,
        seed: int = 0,
    ) -> None:
        if isinstance(actions, str):
            raise ValueError(f"actions must be a whole number or a list of labels, got {actions!r}")
        labels = list(range(actions)) if isinstance(actions, int | np.integer) else [_label(own) for own in actions]
        if not all(isinstance(label, Hashable) for label in labels):
            raise ValueError(f"actions must have labels that are numbers or text, got {labels!r}")
        if len(set(labels)) < len(labels):
            raise ValueError(f"actions must be unique, got {labels!r}")
        self._agents = Agents(
            Neural() if belief is None else belief,
            num_features=num_features,
            num_actions=len(labels),
            seeds=[seed],
            policy=policy,
            epsilon=epsilon,
            warm_up=warm_up,
        )
        self._keep(labels)

    def _keep(self, labels: list[Hashable]) -> None:
        self._labels = labels
        self._numbers = {label: number for number, label in enumerate(labels)}

    def __repr__(self) -> str:
        return f"Agent({len(self._labels)} actions, {self.rounds} rounds, {self.num_observations} observations)"

    @property
    def actions(self) -> list[Hashable]:
        """Labels of the actions, in the order of the columns of :meth:`scores`."""
        return list(self._labels)

    @property
    def num_features(self) -> int:
        """Length of a context."""
        return self._agents.num_features

    @property
    def rounds(self) -> int:
        """Number of decisions so far."""
        return self._agents.rounds

    @property
    def num_observations(self) -> int:
        """Number of rewards that the agent has learned from."""
        return self._agents.replay.size

    @property
    def belief(self) -> Belief:
        """The model of the rewards."""
        return self._agents.belief

    def scores(self, contexts: Any, *, seed: int | None = None, per_row: bool = False) -> Tensor:
        """Return the expected rewards of all actions under one sample of the posterior, or at its mean.

        Args:
            contexts: Contexts ``(n, d)``, or one context ``(d,)``; an array, a tensor or lists.
            seed: Seed of the sample; ``None`` uses the posterior mean of the parameters. The agent does not change.
            per_row: Whether to use a different sample for every row instead of one for all.

        Returns:
            Scores ``(n, A)``, or ``(A,)`` for one context, in the units of the rewards.

        Raises:
            ValueError: Contexts have another width, or are not finite, or there is no such seed.
        """
        rows, single = self._rows(contexts)
        check("seed", seed, "None or an integer in [0, 2**64)", lambda v: v is None or is_seed(v))
        seeds = None if seed is None else [int(seed)]
        number = None if seed is None else 0
        if per_row and seed is not None:
            each = [self._agents.scores(row[None, None], number=i, seeds=seeds)[0] for i, row in enumerate(rows)]
            found = torch.cat([torch.empty(0, len(self._labels)), *each])
        else:
            found = self._agents.scores(rows[None], number=number, seeds=seeds)[0]
        return found[0] if single else found

    def act(self, context: Any, *, count: int | None = None, per_row: bool = False) -> Any:
        """Choose an action for a context, or for several.

        Args:
            context: One context, ``(d,)``, or several, ``(n, d)``, that are decided together in one round.
            count: Number of different actions to choose, the best first (a slate), instead of one action.
            per_row: Whether to use a different posterior sample for every row of several contexts, as if they came one
                by one.

        Returns:
            The label of an action, or with ``count`` a list of labels; for several contexts a list of these.

        Raises:
            ValueError: As for :meth:`scores`, or the count is above the number of actions; nothing has changed.
        """
        rows, single = self._rows(context)
        chosen = self._agents.act(rows[None], count=1 if count is None else count, per_row=per_row)[0]
        labels = [[self._labels[number] for number in row] for row in chosen.tolist()]
        found = labels if count is not None else [row[0] for row in labels]
        return found[0] if single else found

    def partial_fit(self, actions: Any, rewards: Any, contexts: Any) -> Agent:
        """Learn from the rewards of actions that were chosen, by this agent or by others.

        Args:
            actions: Labels of the ``n`` actions.
            rewards: The ``n`` rewards.
            contexts: Contexts in which these actions were chosen, ``(n, d)``.

        Returns:
            The agent.

        Raises:
            ValueError: An action is unknown, a reward or context is not finite, a reward is outside the support of the
                likelihood, or widths or lengths differ; nothing has changed. Nothing has changed either if the training
                of the network raises an error.
        """
        rows, _ = self._rows(contexts)
        numbers = [self._number(label) for label in _listed(actions)]
        try:
            earned = _floats(rewards).reshape(-1).float()
        except (TypeError, ValueError):
            raise ValueError(f"rewards must be numbers, got {rewards!r}") from None
        if not len(numbers) == len(earned) == len(rows):
            found = f"{len(numbers)}, {len(earned)} and {len(rows)}"
            raise ValueError(f"actions, rewards and contexts must be of the same length, got {found}")
        bad = (~earned.isfinite()).nonzero()[:, 0].tolist()
        if bad:
            raise ValueError(f"rewards must be finite, got {earned[bad[0]].item()!r} at position {bad[0]}")
        likelihood = getattr(self.belief, "likelihood", None)
        if likelihood is not None and len(earned):
            likelihood.check(torch.zeros(len(earned), 1), earned[:, None])
        self._agents.observe(rows[None], torch.tensor([numbers], dtype=torch.int64), earned[None])
        return self

    def add_action(self, label: Hashable | None = None) -> Agent:
        """Add an action, which is warmed up like the first ones; the model of the other actions is kept.

        Args:
            label: Label of the action; by default the number of actions so far.

        Raises:
            ValueError: There is already an action with this label.
        """
        label = len(self._labels) if label is None else _label(label)
        if label in self._numbers:
            raise ValueError(f"label must be new, got {label!r}")
        self._agents.add_actions(1)
        self._keep([*self._labels, label])
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the agent to one safetensors file, without pickle and with a digest. The file is written whole or not
        at all.

        Raises:
            ValueError: Labels are neither numbers nor text.
            TypeError: The state of the belief cannot be written.
        """
        for label in self._labels:
            if not isinstance(label, str | int | float):
                raise ValueError(f"actions must be numbers or text to be saved, got {label!r}")
        belief = self.belief.settings()
        kind = type(self.belief).__name__
        header = {"labels": self._labels, "agents": self._agents.settings(), "facts": self._agents.facts()}
        storage.write(path, {**header, "kind": kind, "belief": belief}, self._agents.tensors())

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, belief: Belief | None = None) -> Agent:
        """Load an agent from the file that :meth:`save` wrote. It continues as the saved agent would have continued.

        Args:
            path: Path of the file.
            belief: The agent's belief, needed if it has its own ``model``, ``likelihood`` or ``fit``, which are not
                saved.

        Raises:
            FileNotFoundError: There is no such file.
            bayesadam.files.DamagedFile: The file is damaged, of another format or written by a newer version. It is a
                ``ValueError``.
            ValueError: The belief is missing, of another kind, or does not fit the file.

        Warns:
            bayesadam.files.NoDigestWarning: The file was written by an earlier version without a digest, so damage may
                go unnoticed.
        """
        header, tensors, digest = storage.read(path)
        if digest is None:
            files.tell_no_digest(path)
        known = storage.belief_of(header, belief)
        agent = cls.__new__(cls)
        try:
            agent._agents = Agents(known, **header["agents"])
            agent._agents.restore(tensors, header["facts"])
            agent._keep(header["labels"])
        except (KeyError, RuntimeError, TypeError) as error:
            found = f"{os.fspath(path)!r} ({error})"
            raise ValueError(f"the agent's file must fit its belief {known!r}, got {found}") from None
        return agent

    def _rows(self, contexts: Any) -> tuple[Tensor, bool]:
        """Return the contexts as ``(n, d)`` in float32, and whether a single context was given."""
        try:
            rows = _floats(contexts).float()
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"contexts must be numbers of shape (n, {self.num_features}), got {contexts!r}") from None
        single = rows.ndim == 1
        rows = rows[None] if single else rows
        if rows.ndim != 2 or rows.shape[1] != self.num_features:
            expected = f"of shape ({self.num_features},) or (n, {self.num_features})"
            found = tuple(rows[0].shape if single else rows.shape)
            raise ValueError(f"contexts must be {expected}, got {found}")
        if not rows.isfinite().all():
            row = (~rows.isfinite()).any(1).nonzero()[0].item()
            raise ValueError(f"contexts must be finite, got inf or nan in row {row}")
        return rows, single

    def _number(self, label: Any) -> int:
        known = _label(label)
        try:
            return self._numbers[known]
        except (KeyError, TypeError):
            raise ValueError(f"actions must be among {self._labels!r}, got {label!r}") from None


def _label(value: Any) -> Any:
    """Return the label as a Python value instead of a NumPy or PyTorch scalar."""
    return value.item() if isinstance(value, np.generic | Tensor) else value


def _listed(actions: Any) -> list[Any]:
    """Return a list of labels; a single label becomes a list of one."""
    if isinstance(actions, str):
        return [actions]
    if hasattr(actions, "__array__"):  # NumPy, PyTorch, pandas, ...
        return list(np.asarray(actions).reshape(-1).tolist())
    return list(actions) if isinstance(actions, Sequence) else [actions]


def _floats(value: Any) -> Tensor:
    """Return numbers of any type in float64, as a copy or a detached tensor."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
        value = torch.stack([torch.as_tensor(item) for item in value])
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        if tensor.is_complex():
            raise TypeError("complex numbers have no order")
        return tensor.double()
    array = np.asarray(value)
    if array.dtype.kind in "cSUmM":
        raise TypeError("not real numbers")
    return torch.from_numpy(np.array(array, dtype=np.float64))
