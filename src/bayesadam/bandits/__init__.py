"""Contextual bandits by Thompson sampling from any posterior of the library::

    agent = ba.bandits.Agent(num_features=20, actions=10)
    action = agent.act(context)
    agent.partial_fit([action], [reward], [context])

:class:`Agent` is one agent; :class:`Agents` are many agents with different seeds, for experiments. A belief is a model
of the rewards: :class:`Neural`, :class:`Linear` or :class:`Refit`.
"""

from bayesadam.bandits.agent import Agent as Agent
from bayesadam.bandits.agents import POLICIES as POLICIES
from bayesadam.bandits.agents import Agents as Agents
from bayesadam.bandits.belief import Belief as Belief
from bayesadam.bandits.belief import Learner as Learner
from bayesadam.bandits.linear import Linear as Linear
from bayesadam.bandits.neural import POINTS as POINTS
from bayesadam.bandits.neural import RULES as RULES
from bayesadam.bandits.neural import Neural as Neural
from bayesadam.bandits.refit import Refit as Refit
from bayesadam.bandits.replay import Replay as Replay
