"""The result of training a population: posteriors, predictions and the history of the training."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.likelihoods import Likelihood
from bayesadam.population.layout import Layout
from bayesadam.population.networks import Networks
from bayesadam.population.objective import Objective
from bayesadam.posterior import DiagonalGaussian
from bayesadam.predictive.result import Predictive, from_outputs


class Population:
    """``P`` trained members.

    Attributes:
        history: ``"loss"`` is the mean training loss at the samples in every epoch, ``(P, epochs)``. With validation
            data, ``"validation"`` is the mean negative log predictive density. Values are NaN after a member has
            stopped.
        epochs: Number of epochs that every member was trained, ``(P,)``.
        stopped: Reason why the training of every member ended: ``"epochs"``, ``"patience"`` or ``"nonfinite"``.
    """

    def __init__(
        self,
        networks: Networks,
        criteria: Sequence[Likelihood | Objective],
        layout: Layout,
        mean: Tensor,
        variance: Tensor,
        state: Mapping[str, Tensor],
        hyperparameters: Sequence[Mapping[str, Any]],
        history: Mapping[str, Tensor],
        epochs: Tensor,
        stopped: Sequence[str],
        working_set: int,
    ) -> None:
        self.history = history
        self.epochs = epochs
        self.stopped = list(stopped)
        self._networks, self._criteria, self._layout = networks, criteria, layout
        self._all, self._mean, self._variance = mean, mean[:, : networks.layout.numel], variance
        self._state, self._hyperparameters = state, hyperparameters
        self._working_set = working_set

    @cached_property
    def mean(self) -> dict[str, Tensor]:
        """Means of every weight tensor by name, ``(P, ...)``."""
        return self._networks.layout.split(self._mean)

    @cached_property
    def variance(self) -> dict[str, Tensor]:
        """Posterior variances of every weight tensor by name, ``(P, ...)``; 0 for a method without noise."""
        return self._networks.layout.split(self._variance)

    @cached_property
    def state(self) -> dict[str, dict[str, Tensor]]:
        """Tensors of the rule by name (such as ``"exp_avg_sq"``), each ``(P, ...)`` by weight name."""
        return {name: self._layout.split(rows) for name, rows in self._state.items()}

    @cached_property
    def likelihoods(self) -> list[Likelihood]:
        """One likelihood per member, with its learned parameters; empty if the population was trained by an
        objective.
        """
        return [found for found in self._learned if not isinstance(found, Objective)]

    @cached_property
    def objectives(self) -> list[Objective]:
        """One objective per member, with its learned parameters; empty if the population was trained by a
        likelihood.
        """
        return [found for found in self._learned if isinstance(found, Objective)]

    @cached_property
    def _learned(self) -> list[Likelihood | Objective]:
        return _with_learned(self._criteria, self._layout.split(self._all))

    def select(self, members: Sequence[int]) -> Population:
        """Return some of the members, in this order."""
        index = torch.tensor(list(members))
        rows = index.to(self._mean.device)
        return Population(
            self._networks.select(rows),
            [self._criteria[member] for member in members],
            self._layout,
            self._all[rows],
            self._variance[rows],
            {name: value[rows] for name, value in self._state.items()},
            [self._hyperparameters[member] for member in members],
            {name: value[index] for name, value in self.history.items()},
            self.epochs[index],
            [self.stopped[member] for member in members],
            self._working_set,
        )

    def __len__(self) -> int:
        return len(self._mean)

    def __repr__(self) -> str:
        return f"Population({len(self)} members, {self._mean.shape[1]:,} weights each)"

    @cached_property
    def posteriors(self) -> list[DiagonalGaussian]:
        """The posterior of every member; its tensors are views of the population's."""
        return [
            DiagonalGaussian(
                {name: value[member] for name, value in self.mean.items()},
                {name: value[member] for name, value in self.variance.items()},
                hyperparameters={name: value for name, value in own.items() if not isinstance(value, Tensor)},
            )
            for member, own in enumerate(self._hyperparameters)
        ]

    @torch.no_grad()
    def predict(
        self, x: Tensor | Sequence[Tensor], *, mc_samples: int = 64, seed: int = 0, method: str = "monte_carlo"
    ) -> list[Predictive]:
        """Return the predictive distribution of every member.

        Each is that of :func:`bayesadam.predict` with the member's posterior and likelihood, and the same seed.

        Args:
            x: Inputs for all members, ``(N, ...)``, or a sequence with one tensor per member.
            mc_samples: Number of posterior samples of every member; a method without noise has one.
            seed: Seed of the samples, the same for all members.
            method: ``"monte_carlo"``, or ``"mean"`` for the networks at the posterior means alone.

        Raises:
            ValueError: There is not one tensor per member, the method is unknown, there are no samples, or members were
                trained by an objective, which defines no distribution of the targets.
        """
        if method not in ("monte_carlo", "mean"):
            raise ValueError(f"method must be 'monte_carlo' or 'mean', got {method!r}")
        if not self.likelihoods:
            raise ValueError(f"likelihood must be given to train() to predict, got the objective {self._criteria[0]!r}")
        if mc_samples < 1:
            raise ValueError(f"mc_samples must be at least 1, got {mc_samples!r}")
        inputs = [x] * len(self) if isinstance(x, Tensor) else list(x)
        if len(inputs) != len(self):
            raise ValueError(f"x must be one tensor or one for each of {len(self)} members, got {len(inputs)}")
        if method == "monte_carlo" and self._variance.any():
            eps = self._noise(mc_samples, seed)
        else:
            eps = self._mean.new_zeros(1, 1)
        self._networks.train(False)
        results = []
        for member, own in enumerate(inputs):
            network = self._networks.select(torch.tensor([member], device=self._mean.device))
            weights = torch.addcmul(self._mean[member], eps, self._variance[member].sqrt())
            outputs = self._outputs(network, weights, own)
            results.append(from_outputs(outputs, self.likelihoods[member]))
        return results

    def _noise(self, count: int, seed: int) -> Tensor:
        sizes = dict(enumerate(self._networks.layout.sizes))
        eps = noise.normal_many(
            [seed],
            [0],
            range(count),
            sizes,
            stream=noise.POSTERIOR,
            device=self._mean.device,
            scratch=noise.Scratch(),
        )
        return eps[0].to(self._mean.dtype)

    def _outputs(self, network: Networks, weights: Tensor, x: Tensor) -> Tensor:
        """Outputs ``(S, N, ...)``, computed for as many rows at a time as fit into the cache."""
        split = network.layout.split(weights[None])
        each = len(weights) * max(1, network.activations(x[:1])) * weights.element_size()
        rows = torch.split(x, max(1, self._working_set // (2 * each)))
        return torch.cat([network(split, part[None])[0] for part in rows], dim=1)


def _with_learned(
    criteria: Sequence[Likelihood | Objective], values: Mapping[str, Tensor]
) -> list[Likelihood | Objective]:
    """Copies in which the learned parameters have their trained values."""
    if not any(name.startswith("likelihood.") for name in values):
        return list(criteria)
    copies = [copy.deepcopy(criterion) for criterion in criteria]
    with torch.no_grad():
        for member, own in enumerate(copies):
            for name, parameter in own.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(values[f"likelihood.{name}"][member])
    return copies
