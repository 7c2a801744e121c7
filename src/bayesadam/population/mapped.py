"""Objectives of users, mapped over the members of a population and their samples."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bayesadam.population.batches import Batch
from bayesadam.population.layout import Layout
from bayesadam.population.modules import constants, places, signature
from bayesadam.population.networks import Networks
from bayesadam.population.objective import Losses, Objective
from bayesadam.population.perceptron import Weights

if TYPE_CHECKING:
    from typing import Self


class MappedObjective(Losses):
    """The losses of an :class:`Objective`, by autograd.

    Args:
        models: One network per member.
        objectives: One objective per member, all of one kind. Their learned parameters follow the networks' weights and
            are trained without noise.

    Raises:
        ValueError: One is not an :class:`Objective`, or they are of several kinds.
    """

    def __init__(self, models: Sequence[nn.Module], objectives: Sequence[Objective]) -> None:
        for position, objective in enumerate(objectives):
            if not isinstance(objective, Objective):
                raise ValueError(f"objective must be a population.Objective, got {objective!r} at position {position}")
            if signature(objective) != signature(objectives[0]):
                raise ValueError(
                    "objective must be of one kind for all members, which may differ in parameters and buffers only, "
                    f"got another at position {position}"
                )
        self.networks = Networks(models)
        template = copy.deepcopy(objectives[0])
        learned = Layout({name: p.shape for name, p in template.named_parameters() if p.requires_grad})
        self.place(self.networks, learned)
        self._fixed, self._common = constants(objectives, learned.shapes)
        self._member = _Member(self.networks.template, template)
        self._places = {f"model.{place}": name for place, name in places(self.networks.template).items()}
        self._places |= {f"objective.{place}": f"likelihood.{name}" for place, name in places(template).items()}

    def select(self, rows: Tensor) -> Self:
        """The objectives of some of the members."""
        chosen = copy.copy(self)
        chosen.networks = self.networks.select(rows)
        chosen._fixed = {name: value[rows] for name, value in self._fixed.items()}
        return chosen

    def losses(self, theta: Tensor, batch: Batch) -> Tensor:
        """Mean losses, as in the base class."""
        count, samples = theta.shape[:2]
        weights = {name: value.flatten(0, 1) for name, value in self.layout.split(theta).items()}
        fixed = self.networks.fixed | {f"likelihood.{name}": value for name, value in self._fixed.items()}
        weights |= {name: value[:count].repeat_interleave(samples, 0) for name, value in fixed.items()}
        x, y = (part.repeat_interleave(samples, 0) for part in (batch.x, batch.y))
        each, penalty = vmap(self._run, randomness="different")(weights, x, y)
        return batch.mean(each.view(count, samples, -1)) + penalty.view(count, samples)

    def try_one(self, theta: Tensor, member: int, x: Tensor, y: Tensor, name: str) -> None:
        """Check that the losses are one number for each data point, and the penalty one number."""
        x, y = x[:2].clone(), y[:2]  # of one alone, a mean would look like a loss
        weights = {key: value[member] for key, value in self.layout.split(theta).items()}
        weights |= {key: value[member] for key, value in self.networks.fixed.items()}
        weights |= {f"likelihood.{key}": value[member] for key, value in self._fixed.items()}
        each, penalty = self._run(weights, x, y)
        if each.shape != (len(x),):
            raise ValueError(
                f"losses of the objective must be of shape {(len(x),)} for {len(x)} data points, got "
                f"{tuple(each.shape)} for {name} of member {member}"
            )
        if penalty.ndim:
            raise ValueError(f"penalty of the objective must be one number, got shape {tuple(penalty.shape)}")

    def _run(self, weights: Weights, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        common = {f"likelihood.{name}": value for name, value in self._common.items()}
        named = {**self.networks.common, **common, **weights}
        placed = {place: named[name] for place, name in self._places.items()}
        found: tuple[Tensor, Tensor] = functional_call(self._member, placed, (x, y), tie_weights=False)
        return found


class _Member(nn.Module):
    """A network and its objective as one module, whose tensors ``functional_call`` replaces."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        losses = self.objective.losses(self.model, x, y)
        return losses, torch.as_tensor(self.objective.penalty(self.model), device=losses.device).to(losses.dtype)
