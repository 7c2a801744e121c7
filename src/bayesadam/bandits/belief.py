"""What a belief about rewards is: a configuration, and what agents learn from it."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from bayesadam.bandits.replay import Replay


class Belief(abc.ABC):
    """How rewards are modelled: the settings alone, which never change."""

    @abc.abstractmethod
    def start(self, num_features: int, num_actions: int, seeds: Sequence[int]) -> Learner:
        """What agents with these seeds know before they have seen anything."""

    def settings(self) -> dict[str, Any] | None:
        """All fields as JSON, or ``None`` where one is an object that JSON does not have (a network, a function)."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return found if all(map(_is_json, found.values())) else None


class Learner(abc.ABC):
    """What ``P`` agents know about the rewards of ``A`` actions. A subclass defines :meth:`scores` and what it learns.

    Attributes:
        seeds: Of the agents.
        num_actions: ``A``.
    """

    def __init__(self, num_actions: int, seeds: Sequence[int]) -> None:
        self.num_actions = num_actions
        self.seeds = list(seeds)

    def observe(self, replay: Replay, count: int) -> None:  # noqa: B027
        """The last ``count`` observations of each agent are new."""

    def train(self, replay: Replay, number: int) -> None:  # noqa: B027
        """Train for the ``number``-th time, counted from 0, on all that has been seen."""

    @abc.abstractmethod
    def scores(self, contexts: Tensor, number: int | None, seeds: Sequence[int] | None = None) -> Tensor:
        """Expected rewards of all actions.

        Args:
            contexts: ``(P, n, d)``.
            number: Of the posterior sample; ``None``: the posterior mean of the parameters.
            seeds: Of the samples; default the agents' own.

        Returns:
            ``(P, n, A)`` in the units of the rewards.
        """

    @abc.abstractmethod
    def grow(self, count: int) -> None:
        """Add actions about which nothing is known."""

    @abc.abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that has been learned."""

    def facts(self) -> dict[str, Any]:
        """What belongs to the tensors and is no tensor, as JSON."""
        return {}

    @abc.abstractmethod
    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Take back what :meth:`tensors` and :meth:`facts` gave; others are a ``KeyError`` or a ``RuntimeError``."""


def _is_json(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool | int | float | str)
