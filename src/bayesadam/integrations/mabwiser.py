"""An adapter that gives an agent the methods of MABWiser's ``MAB``."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import numpy as np

from bayesadam.bandits import Agent


class MAB:
    """A bandit with ``fit``, ``partial_fit``, ``predict``, ``predict_expectations`` and ``add_arm`` as in MABWiser.

    ::

        mab = MAB(ba.bandits.Agent(num_features=5, actions=["red", "green"]))
        mab.fit(decisions, rewards, contexts)
        mab.predict(contexts)

    MABWiser itself is not needed. Arguments may be lists, arrays, Series and DataFrames. If there is only one feature,
    contexts may also be its ``n`` values, such as one column of a DataFrame.

    Args:
        agent: The agent, which is trained.

    Attributes:
        agent: The agent; :meth:`fit` replaces it by another one.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._fresh = copy.deepcopy(agent)

    @property
    def arms(self) -> list[Hashable]:
        """Labels of the actions."""
        return self.agent.actions

    @property
    def is_contextual(self) -> bool:
        """True, since predictions need contexts."""
        return True

    def fit(self, decisions: Any, rewards: Any, contexts: Any) -> MAB:
        """Learn from logged decisions, and forget what was learned since the adapter was made.

        What the agent had learned before that is kept. Give the adapter a new agent to start without any knowledge.

        Args:
            decisions: Labels of the ``n`` chosen arms.
            rewards: The ``n`` rewards.
            contexts: Contexts, ``(n, d)``.

        Raises:
            ValueError: As for :meth:`bayesadam.bandits.Agent.partial_fit`; nothing has changed.
        """
        agent = copy.deepcopy(self._fresh)
        agent.partial_fit(decisions, rewards, self._rows(contexts))
        self.agent = agent
        return self

    def partial_fit(self, decisions: Any, rewards: Any, contexts: Any) -> MAB:
        """Learn from further decisions; see :meth:`fit`."""
        self.agent.partial_fit(decisions, rewards, self._rows(contexts))
        return self

    def predict(self, contexts: Any) -> Any:
        """Choose an arm for each context, with a different posterior sample for each; a single row gives a single
        arm.
        """
        found = self.agent.act(self._rows(contexts), per_row=True)
        return found[0] if len(found) == 1 else found

    def predict_expectations(self, contexts: Any) -> Any:
        """Posterior mean of every arm's reward, as a dictionary for each context; a single row gives a single
        dictionary.
        """
        scores = self.agent.scores(self._rows(contexts)).tolist()
        found = [dict(zip(self.arms, row, strict=True)) for row in scores]
        return found[0] if len(found) == 1 else found

    def add_arm(self, arm: Hashable) -> None:
        """Add an arm, which is first chosen ``warm_up`` times."""
        self.agent.add_action(arm)
        self._fresh.add_action(arm)

    def _rows(self, contexts: Any) -> Any:
        """Contexts as rows. Several numbers are one context, or one context each if there is only one feature."""
        rows = np.asarray(contexts)
        if rows.ndim == 1:
            return rows[:, None] if self.agent.num_features == 1 else rows[None]
        return rows
