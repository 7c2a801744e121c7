"""Rewards predicted by any network with any posterior, which a function of the user fits to all observations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.bandits.belief import Belief, Learner
from bayesadam.bandits.replay import Replay
from bayesadam.checks import check, is_whole
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.population.networks import initialize
from bayesadam.posterior import NetworkDistribution, Posterior
from bayesadam.posterior.base import posterior_kinds
from bayesadam.predictive.batches import in_eval_mode

Fit = Callable[[nn.Module, Tensor, Tensor, Tensor], NetworkDistribution]


@dataclass(frozen=True)
class Refit(Belief):
    """A network that your own function trains; the function returns the posterior.

    This is for methods that :class:`Neural` does not have: other losses and optimisers, SWAG, ensembles, full Laplace
    approximations. ``fit(model, contexts, actions, rewards)`` is called with the network in the state after the
    previous call, contexts ``(n, d)``, the numbers of the chosen actions ``(n,)`` and rewards ``(n,)``. It may train
    the network further or anew, and returns any posterior of the library, or an ``MCDropout`` of the network. Agents
    are fitted one after another.

    Args:
        model: Function that makes a network from contexts to one output per action, given the numbers of features and
            of actions.
        fit: Function that trains the network and returns a posterior, see above.
        likelihood: Likelihood of a reward given its output; scores are its means. With ``None`` scores are the outputs.
        train_every: Number of observations between two calls of ``fit``.
    """

    model: Callable[[int, int], nn.Module]
    fit: Fit
    _: KW_ONLY
    likelihood: Likelihood | None = None
    train_every: int = 100

    def __post_init__(self) -> None:
        check("train_every", self.train_every, "a whole number of at least 1", is_whole)
        if self.likelihood is not None:
            check_likelihood(self.likelihood)

    def start(self, num_features: int, num_actions: int, seeds: Sequence[int]) -> RefitLearner:
        """Create the networks before any observation."""
        return RefitLearner(self, num_features, num_actions, seeds)


class RefitLearner(Learner):
    """The networks of all agents and their posteriors."""

    def __init__(self, belief: Refit, num_features: int, num_actions: int, seeds: Sequence[int]) -> None:
        super().__init__(num_actions, seeds)
        self.belief = belief
        self.models = initialize(lambda: belief.model(num_features, num_actions), seeds=self.seeds)
        self.posteriors: list[NetworkDistribution | None] = [None] * len(self.seeds)

    def train(self, replay: Replay, number: int) -> None:
        """Call the user's function for each agent."""
        found: list[NetworkDistribution | None] = []
        for model, x, actions, rewards in zip(
            self.models, replay.contexts, replay.actions, replay.rewards, strict=True
        ):
            posterior = self.belief.fit(model, x.clone(), actions.clone(), rewards.clone())
            if not isinstance(posterior, NetworkDistribution):
                raise TypeError(f"fit must return a posterior, got {type(posterior).__name__}")
            found.append(posterior)
        self.posteriors = found

    @torch.no_grad()
    def scores(self, contexts: Tensor, number: int | None, seeds: Sequence[int] | None = None) -> Tensor:
        """Return the expected rewards of all actions, as in the base class."""
        seeds = self.seeds if seeds is None else seeds
        rows = []
        for model, posterior, x, seed in zip(self.models, self.posteriors, contexts, seeds, strict=True):
            with in_eval_mode(model):
                if posterior is None:
                    output = model(x)
                else:
                    with posterior.draws(model, seed) as put:
                        put(number)
                        output = model(x)
            rows.append(output if self.belief.likelihood is None else self.belief.likelihood.moments(output)[0])
        return torch.stack(rows)

    def undo(self) -> Callable[[], None]:
        """Return a function that restores the networks and posteriors, as in the base class."""
        states = [copy.deepcopy(model.state_dict()) for model in self.models]
        posteriors = self.posteriors

        def restore() -> None:
            for model, state in zip(self.models, states, strict=True):
                model.load_state_dict(state)
            self.posteriors = posteriors

        return restore

    def grow(self, count: int) -> None:
        """Raise an error, since only the user's function can add outputs to its network."""
        raise TypeError("actions must be added to Neural or Linear agents, got Refit")

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state, as in the base class."""
        found: dict[str, Tensor] = {}
        for agent, (model, posterior) in enumerate(zip(self.models, self.posteriors, strict=True)):
            found |= {f"{agent}/model/{name}": value for name, value in model.state_dict().items()}
            if posterior is not None:
                own = _saved(posterior).tensors()
                found |= {f"{agent}/posterior/{name}": value for name, value in own.items()}
        return found

    def facts(self) -> dict[str, Any]:
        """Return the other values of the state, as in the base class."""
        kinds: list[Any] = []
        for posterior in self.posteriors:
            if posterior is None:
                kinds.append(None)
            else:
                known = _saved(posterior)
                kinds.append([type(known).__name__, list(known.tensors()), known.hyperparameters])
        return {"posteriors": kinds}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore the state, as in the base class."""
        for agent, (model, kind) in enumerate(zip(self.models, facts["posteriors"], strict=True)):
            prefix = f"{agent}/model/"
            model.load_state_dict({n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)})
            if kind is not None:
                name, names, told = kind
                own = {key: tensors[f"{agent}/posterior/{key}"] for key in names}
                self.posteriors[agent] = posterior_kinds()[name].from_tensors(own, told)


def _saved(posterior: NetworkDistribution) -> Posterior:
    if not isinstance(posterior, Posterior):
        raise TypeError(f"fit must return a Posterior for the agent to be saved, got {type(posterior).__name__}")
    return posterior
