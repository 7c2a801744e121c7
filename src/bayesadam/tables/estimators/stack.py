"""Joint evaluation of all members of an ensemble of perceptrons, without a loop over members.

The results agree with those of :func:`bayesadam.predict` for every member up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Likelihood
from bayesadam.population import Perceptron, plain_layers
from bayesadam.posterior import GaussianPosterior, Mixture
from bayesadam.predictive import Options, Predictive, from_gaussian, from_outputs, uncertain_part, weight_covariance
from bayesadam.tables.estimators.plan import AT_ONCE

LARGEST = 2**24
"""Maximum size of a stack. Larger ensembles are evaluated member by member, at little additional cost."""

_STACKS: WeakKeyDictionary[Mixture, dict[tuple[str, int], Stack]] = WeakKeyDictionary()
"""Stacks by posterior. They are stored outside the estimator, so that they are neither copied nor pickled with it."""


@dataclass(frozen=True)
class Stack:
    """The members' weights and their covariance ``diag(variance) + F F'``, stacked.

    See :class:`bayesadam.predictive.covariance.WeightCovariance`.

    Attributes:
        network: Perceptron of the members.
        weights: Means by name, ``(M, *shape)``; for sampling, draws ``(M, S, *shape)``.
        variance: Diagonal variances by name, ``(M, *shape)``, of the weights that have them.
        factor: Rows of ``F`` by name, ``(M, number of weights, R)``.
    """

    network: nn.Module
    weights: dict[str, Tensor]
    variance: dict[str, Tensor]
    factor: dict[str, Tensor]

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs ``(M, S, N, K)`` of the draws for inputs ``(N, D)``."""
        layers = plain_layers(self.network)
        assert layers is not None
        first = next(iter(self.weights.values()))
        values = [math.prod(value.shape[:3]) for value in self.weights.values()]  # of hidden units and outputs
        parts = torch.split(x, max(1, AT_ONCE // max(values)))
        outputs = [Perceptron(layers, self.weights, part.expand(len(first), -1, -1)).output for part in parts]
        return torch.cat(outputs, dim=2)

    def linearized(self, x: Tensor, likelihood: Likelihood) -> tuple[Tensor, Tensor]:
        """Return outputs at the means, ``(M, N, K)``, and the covariance of their uncertain part, ``(M, N, K', K')``.

        Args:
            x: Inputs ``(N, D)``.
            likelihood: The likelihood, which determines the outputs that are uncertain.
        """
        each = sum(self.weights[name].numel() for name in {**self.variance, **self.factor})
        means, covariances = [], []
        for part in torch.split(x, max(1, AT_ONCE // each)):
            mean, covariance = self._linearized(part, likelihood)
            means.append(mean)
            covariances.append(covariance)
        return torch.cat(means, dim=1), torch.cat(covariances, dim=1)

    @torch.enable_grad()
    def _linearized(self, x: Tensor, likelihood: Likelihood) -> tuple[Tensor, Tensor]:
        """Linearise some rows, by a forward pass and a backward pass for each uncertain output."""
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        hidden = x.unsqueeze(0)
        for name, layer in self.network.named_children():
            before = hidden
            if not isinstance(layer, nn.Linear):
                hidden = layer(before)
                continue
            hidden = self.weights[f"{name}.bias"].unsqueeze(1) + _forward(before, self.weights[f"{name}.weight"])
            if any(f"{name}.weight" in part for part in (self.variance, self.factor)):
                inputs[name], outputs[name] = before.detach(), hidden.requires_grad_()
        wanted = uncertain_part(likelihood, hidden.flatten(0, 1)).reshape(*hidden.shape[:2], -1)
        each = [
            torch.autograd.grad(output.sum(), list(outputs.values()), retain_graph=True) for output in wanted.unbind(2)
        ]
        jacobian: dict[str, Tensor] = {}
        for name, *slopes in zip(outputs, *each, strict=True):
            slope = jacobian[f"{name}.bias"] = torch.stack(slopes, dim=2)  # (M, N, K', out)
            jacobian[f"{name}.weight"] = (slope.unsqueeze(4) * inputs[name][:, :, None, None]).flatten(3)
        return hidden.detach(), self._covariance(jacobian)

    @torch.no_grad()
    def _covariance(self, jacobian: dict[str, Tensor]) -> Tensor:
        """Return ``J Sigma J'`` for Jacobians by name, ``(M, N, K', numel)``."""
        parts = [jacobian[name] * value.flatten(1).sqrt()[:, None, None] for name, value in self.variance.items()]
        moved = [
            torch.einsum("mnkw,mwr->mnkr", jacobian[name].to(value.dtype), value) for name, value in self.factor.items()
        ]
        roots = [*parts, torch.stack(moved).sum(0)] if moved else parts
        return torch.stack([root @ root.mT for root in roots]).sum(0)


def _forward(inputs: Tensor, weight: Tensor) -> Tensor:
    """Return the products of inputs with each member's weights, ``(M, N, out)``; all members may share the inputs."""
    if len(inputs) > 1 or len(weight) == 1:
        return inputs @ weight.mT
    return (inputs[0] @ weight.flatten(0, 1).T).view(inputs.shape[1], *weight.shape[:2]).transpose(0, 1)


@torch.inference_mode(False)
def stacked_predictions(
    method: str,
    network: nn.Module,
    posterior: Mixture,
    likelihoods: Sequence[Likelihood],
    x: Tensor,
    *,
    mc_samples: int,
) -> list[Predictive] | None:
    """Return the predictive distribution of every member, with its number as the seed of :func:`bayesadam.predict`.

    Args:
        method: Method of :func:`bayesadam.predict`.
        network: Network of the members.
        posterior: Mixture of the members' posteriors.
        likelihoods: Likelihoods of the members.
        x: Inputs ``(N, D)``.
        mc_samples: Number of samples, as for :func:`bayesadam.predict`.

    Returns:
        ``None`` if the posteriors have Kronecker factors or differ in shape, or if the ensemble is too large.
    """
    stacks = _STACKS.setdefault(posterior, {})
    stack = stacks.get((method, mc_samples)) or _stack(method, network, posterior, mc_samples)
    if stack is None:
        return None
    stacks[method, mc_samples] = stack
    if method == "linearized":
        outputs, covariance = stack.linearized(x.clone(), likelihoods[0])
        with torch.no_grad():
            return [
                from_gaussian(mean, each, likelihood, Options(likelihood, mc_samples, number, common=True))
                for number, (mean, each, likelihood) in enumerate(zip(outputs, covariance, likelihoods, strict=True))
            ]
    draws = stack.outputs(x)
    with torch.no_grad():
        return [from_outputs(each, likelihood) for each, likelihood in zip(draws, likelihoods, strict=True)]


def _stack(method: str, network: nn.Module, posterior: Mixture, mc_samples: int) -> Stack | None:
    device = next(network.parameters()).device
    components = cast("tuple[GaussianPosterior, ...]", posterior.components)
    nothing: list[dict[str, Tensor]] = [{} for _ in components]
    if method == "linearized":
        covariances = [weight_covariance(q).of_random() for q in components]
        if any(each.left for each in covariances):
            return None
        parts = [[dict(q.mean) for q in components]]
        parts += [[dict(each.variance) for each in covariances], [dict(each.factor) for each in covariances]]
    elif method == "mean":
        parts = [[{name: mean.unsqueeze(0) for name, mean in q.mean.items()} for q in components], nothing, nothing]
    else:
        parts = [[q.sample(mc_samples, seed=number) for number, q in enumerate(components)], nothing, nothing]
    alike = all(_shapes(member) == _shapes(part[0]) for part in parts for member in part)
    size = len(components) * sum(value.numel() for part in parts for value in part[0].values())
    if not alike or size > LARGEST:
        return None
    return Stack(
        network, *({name: torch.stack([each[name].to(device) for each in part]) for name in part[0]} for part in parts)
    )


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}
