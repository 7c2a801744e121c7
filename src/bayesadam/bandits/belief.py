"""The base classes of models of rewards: a belief has the settings, and a learner the knowledge of the agents."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from bayesadam.bandits.replay import Replay
from bayesadam.checks import plain


class Belief(abc.ABC):
    """Base class of models of rewards. A belief has only the settings, which never change."""

    @abc.abstractmethod
    def start(self, num_features: int, num_actions: int, seeds: Sequence[int]) -> Learner:
        """Create the learner of agents with these seeds, before any observation."""

    def settings(self) -> dict[str, Any] | None:
        """Return all fields as JSON values, or ``None`` if a field is an object without a JSON form (a network, a
        function).
        """
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        found = {name: plain(name, getattr(self, name)) for name in names}
        return found if all(map(_is_json, found.values())) else None


class Learner(abc.ABC):
    """The knowledge of ``P`` agents about the rewards of ``A`` actions. A subclass defines :meth:`scores` and how it
    learns.

    Attributes:
        seeds: Seeds of the agents.
        num_actions: Number of actions ``A``.
    """

    def __init__(self, num_actions: int, seeds: Sequence[int]) -> None:
        self.num_actions = num_actions
        self.seeds = list(seeds)

    def observe(self, replay: Replay, count: int) -> None:  # noqa: B027
        """Learn from new observations, which are the last ``count`` of each agent."""

    def train(self, replay: Replay, number: int) -> None:  # noqa: B027
        """Train on all observations; ``number`` is the number of this training, counted from 0."""

    def undo(self) -> Callable[[], None]:
        """Return a function that restores the present state, for a training that fails."""
        tensors, facts = {name: value.clone() for name, value in self.tensors().items()}, self.facts()
        return lambda: self.restore(tensors, facts)

    @abc.abstractmethod
    def scores(self, contexts: Tensor, number: int | None, seeds: Sequence[int] | None = None) -> Tensor:
        """Return the expected rewards of all actions.

        Args:
            contexts: Contexts, ``(P, n, d)``.
            number: Number of the posterior sample; ``None`` uses the posterior mean of the parameters.
            seeds: Seeds of the samples; by default those of the agents.

        Returns:
            Scores ``(P, n, A)`` in the units of the rewards.
        """

    @abc.abstractmethod
    def grow(self, count: int) -> None:
        """Add actions, for which there are no observations."""

    @abc.abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that have been learned."""

    def facts(self) -> dict[str, Any]:
        """Return the other values of the state, as JSON values."""
        return {}

    @abc.abstractmethod
    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore the results of :meth:`tensors` and :meth:`facts`; raise ``KeyError`` or ``RuntimeError`` if they do
        not fit.
        """


def _is_json(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool | int | float | str)
