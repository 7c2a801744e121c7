"""An agent as a policy of Open Bandit Pipeline (``obp``)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesadam.bandits import Agent
from bayesadam.checks import check, is_whole

try:
    from obp.policy.policy_type import PolicyType
except ImportError as error:
    raise ImportError(
        f"bayesadam.integrations.open_bandit_pipeline needs obp: pip install --no-deps obp, and pyyaml, seaborn, tqdm "
        f"({error})"
    ) from None


class OpenBanditPolicy:
    """A contextual policy with the methods and attributes that Open Bandit Pipeline's simulator uses.

    ::

        policy = OpenBanditPolicy(ba.bandits.Agent(num_features=5, actions=10))
        action_dist = obp.simulator.run_bandit_simulation(bandit_feedback=feedback, policy=policy)

    Args:
        agent: The agent, which is trained; its labels must be the numbers 0, 1, ....
        len_list: Number of different actions that are recommended at a time, the best first.

    Raises:
        ValueError: The agent has other labels, or ``len_list`` is above the number of actions.
    """

    policy_type = PolicyType.CONTEXTUAL
    batch_size = 1

    def __init__(self, agent: Agent, *, len_list: int = 1) -> None:
        if agent.actions != list(range(len(agent.actions))):
            raise ValueError(f"actions of the agent must be the numbers 0, 1, ..., got {agent.actions!r}")
        rule = f"a whole number from 1 to {len(agent.actions)}"
        check("len_list", len_list, rule, lambda v: is_whole(v) and v <= len(agent.actions))
        self.agent, self.len_list = agent, len_list
        self._fresh = copy.deepcopy(agent)

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.agent.actions)

    @property
    def dim(self) -> int:
        """Length of a context."""
        return self.agent.num_features

    @property
    def n_trial(self) -> int:
        """Number of rewards that the agent has learned from."""
        return self.agent.num_observations

    def initialize(self) -> None:
        """Forget everything learned since the policy was made."""
        self.agent = copy.deepcopy(self._fresh)

    def select_action(self, context: NDArray[Any]) -> NDArray[np.int64]:
        """Recommend actions for one context of shape ``(1, dim)``; the result has shape ``(len_list,)``."""
        context = np.asarray(context)
        if context.shape != (1, self.dim):
            raise ValueError(f"context must be of shape {(1, self.dim)}, got {context.shape}")
        return np.array(self.agent.act(context[0], count=self.len_list))

    def update_params(self, action: int, reward: float, context: NDArray[Any]) -> None:
        """Learn from the reward of an action in a context of shape ``(1, dim)``."""
        self.agent.partial_fit([action], [reward], context)
