"""Rewards as linear functions of the context."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesadam.bandits.belief import Belief, Learner
from bayesadam.bandits.regression import ArmRegressions
from bayesadam.bandits.replay import Replay
from bayesadam.checks import check


@dataclass(frozen=True, kw_only=True)
class Linear(Belief):
    """An exact Bayesian linear regression with intercept for every action (linear-Gaussian Thompson sampling).

    Every observation is learned immediately and in closed form, without training. With ``noise_precision=None`` and
    ``standardize=False`` it is "LinFullPost" of Riquelme et al. 2018, whose noise variance has an inverse gamma prior
    that suits rewards of about 1.

    Args:
        prior_precision: Precision of the weights' prior, positive. If the noise precision is unknown, it is relative to
            the noise precision.
        noise_precision: Precision of the noise in inverse squared units of the rewards; ``None`` if it is unknown, and
            learned for every action.
        width: Factor of the standard deviations of the posterior samples; below 1 agents explore less.
        standardize: Whether the priors are those of rewards with mean 0 and standard deviation 1 over all observations,
            so that the unit and the offset of the rewards do not matter. Rewards with a known noise precision are not
            standardised.
    """

    prior_precision: float = 0.25
    noise_precision: float | None = None
    width: float = 1.0
    standardize: bool = True

    def __post_init__(self) -> None:
        check("prior_precision", self.prior_precision, "a positive, finite number", lambda v: 0 < v < math.inf)
        if self.noise_precision is not None:
            check("noise_precision", self.noise_precision, "None or positive and finite", lambda v: 0 < v < math.inf)
        check("width", self.width, "a finite number of at least 0", lambda v: 0 <= v < math.inf)
        check("standardize", self.standardize, "True or False", lambda v: isinstance(v, bool))

    def start(self, num_features: int, num_actions: int, seeds: Sequence[int]) -> LinearLearner:
        """Create the regressions before any observation."""
        return LinearLearner(self, num_features, num_actions, seeds)


class LinearLearner(Learner):
    """The regressions of all agents."""

    def __init__(self, belief: Linear, num_features: int, num_actions: int, seeds: Sequence[int]) -> None:
        super().__init__(num_actions, seeds)
        self._factor = belief.width
        self._arms = ArmRegressions(
            len(self.seeds),
            num_actions,
            num_features + 1,
            prior_precision=belief.prior_precision,
            noise_precision=belief.noise_precision,
            standardize=belief.standardize and belief.noise_precision is None,
        )

    def observe(self, replay: Replay, count: int) -> None:
        """Add new observations to the regressions."""
        x, actions, rewards = (part[:, -count:] for part in (replay.contexts, replay.actions, replay.rewards))
        self._arms.add(with_intercept(x.double()), actions, rewards)

    def scores(self, contexts: Tensor, number: int | None, seeds: Sequence[int] | None = None) -> Tensor:
        """Return the expected rewards of all actions, as in the base class."""
        arms = self._arms
        weights = arms.mean() if number is None else arms.sample(number, seeds or self.seeds, width=self._factor)
        return with_intercept(contexts.double()) @ weights.transpose(1, 2)

    def grow(self, count: int) -> None:
        """Add actions, for which there are no observations."""
        self._arms.grow(count)
        self.num_actions += count

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the regressions."""
        return self._arms.tensors()

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`tensors`."""
        self._arms.restore(tensors)


def with_intercept(x: Tensor) -> Tensor:
    """Append a column of ones to features ``(P, n, d)``."""
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)
