"""The result of training a population: posteriors, predictions and the history of the training."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.likelihoods import Likelihood
from bayesadam.modules.exclusive import Parts
from bayesadam.modules.padding import padding_rows
from bayesadam.modules.wrappers import buffers_of
from bayesadam.population.losses import Losses
from bayesadam.population.objective import Objective
from bayesadam.posterior import DiagonalGaussian
from bayesadam.predictive.result import Predictive, from_outputs


class Population:
    """``P`` trained members.

    Attributes:
        epochs: Number of epochs that every member was trained, ``(P,)``.
        stopped: Reason why the training of every member ended: ``"epochs"``, ``"patience"`` or ``"nonfinite"``.
    """

    def __init__(
        self,
        losses: Losses,
        criteria: Sequence[Likelihood | Objective],
        hypers: Sequence[Mapping[str, Any]],
        tensors: Mapping[str, Tensor],
        curves: Mapping[str, Tensor],
        epochs: Tensor,
        stopped: Sequence[str],
        members: Sequence[int],
    ) -> None:
        self.epochs, self.stopped = epochs, list(stopped)
        self._losses, self._criteria, self._hypers, self._tensors = losses, criteria, hypers, tensors
        self._curves, self._members = curves, list(members)
        self._mean, self._variance = (tensors[name][:, : losses.perturbed] for name in ("mean", "variance"))

    @cached_property
    def history(self) -> dict[str, Tensor]:
        """``"loss"`` is the mean training loss at the samples in every epoch, ``(P, epochs)``. With validation data,
        ``"validation"`` is the mean negative log predictive density. Values are NaN after a member has stopped.
        """
        values = {name: curve[self._members] for name, curve in self._curves.items()}
        later = torch.arange(values["loss"].shape[1]) >= self.epochs[:, None]
        return {name: value.masked_fill_(later, math.nan) for name, value in values.items()}

    @cached_property
    def mean(self) -> dict[str, Tensor]:
        """Means of every weight tensor by name, ``(P, ...)``."""
        return self._losses.weights.split(self._mean)

    @cached_property
    def variance(self) -> dict[str, Tensor]:
        """Posterior variances of every weight tensor by name, ``(P, ...)``; 0 for a method without noise."""
        return self._losses.weights.split(self._variance)

    @cached_property
    def state(self) -> dict[str, dict[str, Tensor]]:
        """Tensors of the rule by name (such as ``"exp_avg_sq"``), each ``(P, ...)`` by weight name."""
        names = [name for name in self._tensors if name not in ("mean", "variance")]
        return {name: self._losses.layout.split(self._tensors[name]) for name in names}

    @cached_property
    def likelihoods(self) -> list[Likelihood]:
        """One likelihood per member, with its learned parameters; empty if the population was trained by an
        objective.
        """
        return [criterion for criterion in self._trained_criteria if not isinstance(criterion, Objective)]

    @cached_property
    def objectives(self) -> list[Objective]:
        """One objective per member, with its learned parameters; empty if the population was trained by a
        likelihood.
        """
        return [criterion for criterion in self._trained_criteria if isinstance(criterion, Objective)]

    @cached_property
    def _trained_criteria(self) -> list[Likelihood | Objective]:
        values = self._losses.learned.split(self._tensors["mean"][:, self._losses.perturbed :])
        if not values:
            return list(self._criteria)
        copies = [copy.deepcopy(criterion) for criterion in self._criteria]
        with torch.no_grad():
            for member, criterion in enumerate(copies):
                for name, value in values.items():
                    criterion.get_parameter(name.removeprefix("likelihood.")).copy_(value[member])
        return copies

    def select(self, members: Sequence[int]) -> Population:
        """Return some of the members, in this order."""
        rows = torch.tensor(list(members), device=self._mean.device)
        return self._with_tensors(members, {name: value[rows] for name, value in self._tensors.items()})

    def _with_tensors(self, members: Sequence[int], tensors: Mapping[str, Tensor]) -> Population:
        """Return some of the members with other means, variances and tensors of the rule, each ``(k, numel)``."""
        members = list(members)
        return Population(
            self._losses.select(torch.tensor(members, device=self._mean.device)),
            [self._criteria[member] for member in members],
            [self._hypers[member] for member in members],
            tensors,
            self._curves,
            self.epochs[members],
            [self.stopped[member] for member in members],
            [self._members[member] for member in members],
        )

    def __len__(self) -> int:
        return len(self._mean)

    def __repr__(self) -> str:
        return f"Population({len(self)} members, {self._mean.shape[1]:,} weights each)"

    @cached_property
    def posteriors(self) -> list[DiagonalGaussian]:
        """The posterior of every member; its tensors are views of the population's."""
        buffers, own = buffers_of(self._losses.template.model), self._losses.constants
        return [
            DiagonalGaussian(
                {name: value[member] for name, value in self.mean.items()},
                {name: value[member] for name, value in self.variance.items()},
                hyperparameters=hyper,
            ).with_buffers({name: own[name][member] if name in own else value for name, value in buffers.items()})
            for member, hyper in enumerate(self._hypers)
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
        eps = self._mean.new_zeros(1, 1)
        if method == "monte_carlo" and self._variance.any():
            sizes = dict(enumerate(self._losses.weights.sizes))
            where: dict[str, Any] = {"stream": noise.POSTERIOR, "device": self._mean.device}
            eps = noise.normal_many([seed], [0], range(mc_samples), sizes, **where)[0].to(self._mean.dtype)
        std = self._variance.sqrt()
        model, parts = self._losses.template.model, self._losses.weights.split(std)
        for name, row in padding_rows(Parts(model), {name: model.get_parameter(name) for name in parts}).items():
            parts[name][:, row] = 0.0  # so that they keep their means, as in ``Posterior.draws``
        self._losses.train(False)
        results = []
        for member, (points, likelihood) in enumerate(zip(inputs, self.likelihoods, strict=True)):
            weights = torch.addcmul(self._mean[member], eps, std[member])
            learned = self._tensors["mean"][member, self._losses.perturbed :].expand(len(weights), -1)
            outputs = self._losses.outputs(torch.cat([weights, learned], dim=1), member, points)
            results.append(from_outputs(outputs, likelihood))
        return results
