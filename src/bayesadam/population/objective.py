"""Objectives of populations: as users write them, and as losses at rows of a flat matrix of parameters."""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Likelihood
from bayesadam.population.batches import Batch, Pair
from bayesadam.population.curvature import Gradients, by_autograd, diagonal, with_hessian, with_squares
from bayesadam.population.densities import Likelihoods
from bayesadam.population.layout import Layout
from bayesadam.population.networks import Networks

if TYPE_CHECKING:
    from typing import Self


class Objective(nn.Module, abc.ABC):
    """Base class of objectives that replace the likelihood: the mean loss of the data points plus a penalty.

    A subclass is written for one network and one minibatch, as in an ordinary training loop, and defines at least
    :meth:`losses`; :func:`bayesadam.population.train` maps it over members and their posterior samples. It is a module:
    its parameters that require gradients are trained with those of the network, separately for each member and without
    noise, and its parameters and buffers may differ between members. Everything else, including numbers and text among
    its attributes, is the same for all members::

        class Lasso(population.Objective):
            def __init__(self, strength):
                super().__init__()
                self.strength = strength

            def losses(self, model, x, y):
                return (model(x)[:, 0] - y).square()

            def penalty(self, model):
                return self.strength * sum(weight.abs().sum() for weight in model.parameters())

    The methods are mapped by ``torch.func.vmap``, so they must not branch on the values of tensors. For a posterior the
    losses should be negative log densities in nats, as for a likelihood. Methods that square the gradients of single
    examples treat the penalty as a part of each example's loss.
    """

    def __init__(self) -> None:
        super().__init__()

    @abc.abstractmethod
    def losses(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Loss of every data point of a minibatch, ``(M,)``, which must not depend on other data points.

        Args:
            model: The network, at the weights of one member or sample; it may be called any number of times.
            x: Inputs, ``(M, ...)``; they must not be written to.
            y: Targets, ``(M, ...)``; they must not be written to.
        """

    def penalty(self, model: nn.Module) -> Tensor | float:
        """Penalty that is added to the mean of the losses, one number; by default 0.

        A Kullback-Leibler divergence from a prior must be divided by the number of training data points.
        """
        return 0.0

    def extra_repr(self) -> str:
        """Attributes that are numbers or text; objectives that differ in them are not of one kind."""
        told = {name: value for name, value in vars(self).items() if not name.startswith("_") and name != "training"}
        return ", ".join(f"{n}={v!r}" for n, v in told.items() if isinstance(v, bool | int | float | str | tuple))


class Losses(abc.ABC):
    """The interface between methods and the training loop. A subclass defines at least ``select`` and ``losses``.

    Attributes:
        networks: Networks of all members.
        layout: Layout of all trainable parameters.
        perturbed: Number of the first coordinates that a rule may perturb; the others are trained without noise.
        draws: Sizes of the noise's tensors by noise index, as the library's optimiser would number them.
    """

    networks: Networks
    layout: Layout
    perturbed: int
    draws: Mapping[int, int]

    def place(self, networks: Networks, learned: Layout) -> None:
        """Set the attributes: first the weights of the networks, then the learned parameters of likelihoods or
        objectives.
        """
        own = {f"likelihood.{name}": shape for name, shape in learned.shapes.items()}
        self.layout = Layout({**networks.layout.shapes, **own})
        self.perturbed = networks.layout.numel
        numbers = {name: i for i, (name, _) in enumerate(networks.template.named_parameters())}  # frozen ones count
        sizes = zip(networks.layout.shapes, networks.layout.sizes, strict=True)
        self.draws = {numbers[name]: size for name, size in sizes}

    @abc.abstractmethod
    def select(self, rows: Tensor) -> Self:
        """The objective of some of the members."""

    @abc.abstractmethod
    def losses(self, theta: Tensor, batch: Batch) -> Tensor:
        """Mean loss over the minibatch, ``(k, S)``, of the first ``k`` members at parameters ``(k, S, numel)``."""

    def gradients(self, theta: Tensor, batch: Batch, curvature: str | None = None) -> Gradients:
        """Losses, their gradients at ``theta``, and a curvature there that the rule cannot compute itself.

        Args:
            theta: Parameters, ``(k, S, numel)``.
            batch: Minibatches of the first ``k`` members.
            curvature: ``"exact"`` is the diagonal of the loss's Hessian. ``"empirical_fisher"`` is the mean over the
                minibatch of the squared gradients of single data points, each of :meth:`losses` at that data point
                alone. It is computed at the perturbed coordinates only, since for parameters of a likelihood the
                library's optimiser has no curvature and follows the gradient.
        """
        if curvature == "exact":
            return with_hessian(lambda theta: self.losses(theta, batch), theta)
        if curvature == "empirical_fisher":
            found = with_squares(lambda rows, each, theta: self.select(rows).losses(theta, each), theta, batch)
            assert found.curvature is not None
            return found._replace(curvature=found.curvature[..., : self.perturbed])
        return by_autograd(lambda theta: self.losses(theta, batch), theta)

    @torch.no_grad()
    def check(self, theta: Tensor, data: Sequence[Pair], name: str) -> int:
        """Check every member that has its own data on some data points.

        Args:
            theta: Parameters, ``(P, numel)``.
            data: Pair ``(x, y)`` of every member.
            name: Name of the data in messages.

        Returns:
            Approximate number of values per data point that a network keeps for its backward pass.

        Raises:
            ValueError: :meth:`try_one` refuses the data.
        """
        self.networks.train(False)  # dropout must not draw
        seen = set()
        for member, (x, y) in enumerate(data):
            if (id(x), id(y)) not in seen:
                seen.add((id(x), id(y)))
                self.try_one(theta, member, x, y, name)
        return self.networks.activations(data[0][0][:1])

    def try_one(self, theta: Tensor, member: int, x: Tensor, y: Tensor, name: str) -> None:  # noqa: B027
        """Raise ``ValueError`` if a member cannot be trained on its data; by default nothing is checked."""


class NegativeLogLikelihood(Losses):
    """Mean negative log-likelihood, the loss of every optimiser of the library.

    Args:
        models: One network per member.
        likelihoods: One likelihood per member. Their trainable parameters (a learned noise precision) follow those of
            the network and are trained without noise.
    """

    def __init__(self, models: Sequence[nn.Module], likelihoods: Sequence[Likelihood]) -> None:
        self.networks = Networks(models)
        self.likelihoods = Likelihoods(likelihoods)
        self.place(self.networks, self.likelihoods.layout)

    def select(self, rows: Tensor) -> Self:
        """The objective of some of the members."""
        chosen = copy.copy(self)
        chosen.networks, chosen.likelihoods = self.networks.select(rows), self.likelihoods.select(rows)
        return chosen

    def losses(self, theta: Tensor, batch: Batch) -> Tensor:
        """Mean losses, as in the base class."""
        output = self.networks(self.networks.layout.split(theta[..., : self.perturbed]), batch.x)
        learned = theta[..., self.perturbed :] if self.likelihoods.layout.shapes else None
        return self._losses(output, learned, batch=batch)

    def gradients(self, theta: Tensor, batch: Batch, curvature: str | None = None) -> Gradients:
        """Losses and gradients, as in the base class; for plain perceptrons in closed form."""
        perceptron = self.networks.perceptron(batch.x)
        if perceptron is None or (curvature == "exact" and not perceptron.single):
            return super().gradients(theta, batch, curvature)
        theta = theta.detach()
        trace = perceptron.trace(self.networks.layout.split(theta[..., : self.perturbed]), batch.x)
        slope = None if curvature == "exact" else self.likelihoods.slope(trace.output, batch.y)
        if slope is not None:
            with torch.no_grad():
                losses = self._losses(trace.output, batch=batch)
            inputs: list[Tensor] = []
            grads: Sequence[Tensor] = [batch.shares(slope).neg()]
        else:
            inputs = [trace.output.detach().requires_grad_()]
            if self.likelihoods.layout.shapes:
                inputs.append(theta[..., self.perturbed :].clone().requires_grad_())
            with torch.enable_grad():
                losses = self._losses(*inputs, batch=batch)
                grads = torch.autograd.grad(losses, inputs, torch.ones_like(losses), create_graph=curvature == "exact")
        rows, squares = trace.backward(grads[0].detach(), squares=curvature == "empirical_fisher")
        firsts, seconds = [rows, *(grad.detach() for grad in grads[1:])], []
        if curvature == "exact":
            seconds = [trace.second(diagonal(grads[0], inputs[0]))]
            seconds += [diagonal(grad, value) for grad, value in zip(grads[1:], inputs[1:], strict=True)]
        elif squares is not None:
            # In the mean loss, the loss of a data point has the factor 1 / M.
            size = len(batch.y[0]) if batch.weight is None else batch.weight[:, :1, None].reciprocal().to(theta)
            seconds = [squares * size]
        return Gradients(losses.detach(), _joined(firsts), _joined(seconds) if seconds else None)

    def _losses(self, output: Tensor, learned: Tensor | None = None, *, batch: Batch) -> Tensor:
        own = {} if learned is None else self.likelihoods.layout.split(learned)
        return -batch.mean(self.likelihoods.log_density(own, output, batch.y))

    def try_one(self, theta: Tensor, member: int, x: Tensor, y: Tensor, name: str) -> None:
        """Check that the targets fit the output."""
        alone = self.networks.select(torch.tensor([member]))
        weights = self.networks.layout.split(theta[member, None, None, : self.perturbed])
        output = alone(weights, x[None, :1].clone())[0]
        try:
            self.likelihoods.members[member].check(output.expand(-1, len(y), *output.shape[2:]), y)
        except ValueError as error:
            raise ValueError(f"{name} of member {member}: {error}") from None


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The network's coordinates, followed by those of the likelihood if there are any."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=2)
