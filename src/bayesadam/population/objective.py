"""What a population minimises: a mean loss per member and sample, given rows of a flat matrix of parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Likelihood
from bayesadam.population.batches import Batch, Pair
from bayesadam.population.layout import Layout
from bayesadam.population.networks import Likelihoods, Networks

if TYPE_CHECKING:
    from typing_extensions import Self


class Objective(Protocol):
    """The interface between methods and the training loop.

    Attributes:
        layout: Of all trainable parameters.
        perturbed: How many of the first coordinates a rule may perturb; the others are trained without noise.
        draws: Sizes of the noise's tensors by noise index, as the library's optimiser would number them.
    """

    layout: Layout
    perturbed: int
    draws: Mapping[int, int]

    def select(self, rows: Tensor) -> Self:
        """The objective of some of the members."""

    def losses(self, theta: Tensor, batch: Batch) -> Tensor:
        """Mean loss over the minibatch, ``(k, S)``, of the first ``k`` members at parameters ``(k, S, numel)``."""


class NegativeLogLikelihood:
    """The mean negative log-likelihood: the loss of every optimiser of the library.

    Args:
        models: One network per member.
        likelihoods: One likelihood per member. Their trainable parameters (a learned noise precision) follow those of
            the network and are trained without noise.
    """

    def __init__(self, models: Sequence[nn.Module], likelihoods: Sequence[Likelihood]) -> None:
        self.networks = Networks(models)
        self.likelihoods = Likelihoods(likelihoods)
        learned = {f"likelihood.{name}": shape for name, shape in self.likelihoods.layout.shapes.items()}
        self.layout = Layout({**self.networks.layout.shapes, **learned})
        self.perturbed = self.networks.layout.numel
        numbers = {name: i for i, (name, _) in enumerate(models[0].named_parameters())}  # frozen ones are counted
        sizes = zip(self.networks.layout.shapes, self.networks.layout.sizes, strict=True)
        self.draws: Mapping[int, int] = {numbers[name]: size for name, size in sizes}

    def select(self, rows: Tensor) -> Self:
        """The objective of some of the members."""
        chosen = copy.copy(self)
        chosen.networks, chosen.likelihoods = self.networks.select(rows), self.likelihoods.select(rows)
        return chosen

    def losses(self, theta: Tensor, batch: Batch) -> Tensor:
        """See the protocol."""
        output = self.networks(self.networks.layout.split(theta[..., : self.perturbed]), batch.x)
        learned = self.likelihoods.layout.split(theta[..., self.perturbed :]) if self.likelihoods.layout.shapes else {}
        return -batch.mean(self.likelihoods.log_density(learned, output, batch.y))

    def constants(self) -> list[Tensor]:
        """All tensors that the losses depend on besides weights and data."""
        return [*self.networks.fixed.values(), *self.networks.common.values(), *self.likelihoods.fixed.values()]

    @torch.no_grad()
    def check(self, theta: Tensor, data: Sequence[Pair], name: str) -> int:
        """Try a data point of every member, and its targets against the output.

        Args:
            theta: ``(P, numel)``.
            data: ``(x, y)`` of every member.
            name: What messages call the data.

        Returns:
            Numbers that a network keeps per data point for its backward pass, about.

        Raises:
            ValueError: Targets that do not fit the likelihood.
        """
        self.networks.train(False)  # dropout must not draw
        seen = set()
        for member, (x, y) in enumerate(data):
            if (id(x), id(y)) in seen:
                continue
            seen.add((id(x), id(y)))
            alone = self.networks.select(torch.tensor([member]))
            weights = self.networks.layout.split(theta[member, None, None, : self.perturbed])
            output = alone(weights, x[None, :1].clone())[0]
            try:
                self.likelihoods.members[member].check(output.expand(-1, len(y), *output.shape[2:]), y)
            except ValueError as error:
                raise ValueError(f"{name} of member {member}: {error}") from None
        return self.networks.activations(data[0][0][:1])
