"""Objectives as users write them, and a member: a network with its likelihood or objective."""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Likelihood


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
        public = {name: value for name, value in vars(self).items() if not name.startswith("_") and name != "training"}
        return ", ".join(f"{n}={v!r}" for n, v in public.items() if isinstance(v, bool | int | float | str | tuple))


class Member(nn.Module):
    """A network with its likelihood or objective, as one module.

    Attributes:
        model: The network.
        likelihood: Its likelihood or objective; the prefix of its parameters in a population's state.
    """

    def __init__(self, model: nn.Module, likelihood: Likelihood | Objective) -> None:
        super().__init__()
        self.model, self.likelihood = model, likelihood

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        """Outputs for inputs alone; with targets, the losses of the data points, ``(M, ...)``, and the penalty."""
        if y is None:
            return self.model(x)
        if isinstance(self.likelihood, Objective):
            losses = self.likelihood.losses(self.model, x, y)
            penalty = self.likelihood.penalty(self.model)
            return losses, torch.as_tensor(penalty, device=losses.device).to(losses.dtype)
        losses = -self.likelihood.log_density(self.model(x), y)
        return losses, losses.new_zeros(())
