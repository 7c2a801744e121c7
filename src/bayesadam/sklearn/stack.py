"""Joint evaluation of all members of an ensemble of perceptrons, by a few matrix products without a loop over members.

The results agree with those of :func:`bayesadam.predict` for every member up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Likelihood
from bayesadam.population.perceptron import Layers, Perceptron, plain_layers
from bayesadam.posterior import Mixture
from bayesadam.posterior.gaussian import GaussianPosterior
from bayesadam.predictive.covariance import weight_covariance
from bayesadam.predictive.gaussian import from_gaussian, uncertain_part
from bayesadam.predictive.how import How
from bayesadam.predictive.result import Predictive, from_outputs

LARGEST = 2**24
"""Maximum size of a stack. Larger ensembles are evaluated member by member, at little additional cost."""

AT_ONCE = 2**22
"""Maximum size of an intermediate result, which limits the number of rows that are evaluated together."""

_STACKS: WeakKeyDictionary[Mixture, dict[tuple[str, int], Stack]] = WeakKeyDictionary()
"""Stacks by posterior. They are stored outside the estimator, so that they are neither copied nor pickled with it."""


@dataclass(frozen=True)
class Stack:
    """The members' weights and their covariance ``U diag(variance) U' + F F'``, stacked.

    See :class:`bayesadam.predictive.covariance.WeightCovariance`.

    Attributes:
        layers: Layers of the perceptron.
        weights: Means by name, ``(M, *shape)``; for sampling, draws ``(M, S, *shape)``.
        variance: Diagonal variances by name, ``(M, *shape)``, of the weights that have them.
        factor: Rows of ``F`` by name, ``(M, *shape, R)``.
        left: Bases in ``U`` of the outputs of layers, by the names of weights and biases, ``(M, out, out)``.
        right: Bases in ``U`` of the inputs of layers, by the names of weights, ``(M, in, in)``.
    """

    layers: Layers
    weights: dict[str, Tensor]
    variance: dict[str, Tensor]
    factor: dict[str, Tensor]
    left: dict[str, Tensor]
    right: dict[str, Tensor]

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs ``(M, S, N, K)`` of the draws for inputs ``(N, D)``."""
        first = next(iter(self.weights.values()))
        widest = max(layer.out_features for _, layer in self.layers if isinstance(layer, nn.Linear))
        parts = torch.split(x, int(max(1, AT_ONCE // (len(first) * first.shape[1] * widest))))
        outputs = [Perceptron(self.layers, self.weights, part.expand(len(first), -1, -1)).output for part in parts]
        return torch.cat(outputs, dim=2)

    def linearized(self, x: Tensor, likelihood: Likelihood) -> tuple[Tensor, Tensor]:
        """Return outputs at the means, ``(M, N, K)``, and the covariance of their uncertain part, ``(M, N, K', K')``.

        Args:
            x: Inputs ``(N, D)``.
            likelihood: The likelihood, which determines the outputs that are uncertain.
        """
        members = len(next(iter(self.weights.values())))
        widths = [layer.out_features for _, layer in self.layers if isinstance(layer, nn.Linear)]
        products = [value[0, ..., 0].numel() for value in self.factor.values()]
        each = members * widths[-1] * max([*widths, *products])
        found = [self._linearized(part, likelihood) for part in torch.split(x, int(max(1, AT_ONCE // each)))]
        outputs, covariance = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        return outputs, covariance

    @torch.inference_mode(False)
    @torch.no_grad()
    def _linearized(self, x: Tensor, likelihood: Likelihood) -> tuple[Tensor, Tensor]:
        """Linearise some rows, by a forward pass and a backward pass for each uncertain output."""
        hidden = x.unsqueeze(0)
        passed: list[tuple[str, Tensor]] = []  # inputs of linear layers, and slopes of other layers
        for prefix, layer in self.layers:
            if isinstance(layer, nn.Linear):
                passed.append((prefix, hidden))
                weight, bias = self.weights[f"{prefix}weight"], self.weights[f"{prefix}bias"]
                hidden = bias.unsqueeze(1) + _forward(hidden, weight)
            else:
                hidden, slope = _with_slope(layer, hidden)
                passed.append(("", slope.unsqueeze(2)))
        selected = uncertain_part(likelihood, torch.eye(hidden.shape[-1], dtype=hidden.dtype, device=hidden.device))
        signal = selected.mT.expand(*hidden.shape[:2], *selected.mT.shape)
        total = signal.new_zeros(*signal.shape[:3], signal.shape[2])
        projected: Tensor | None = None
        first, _ = passed[0]
        for prefix, value in reversed(passed):
            if not prefix:
                signal = signal * value
                continue
            for left, spread in self._spreads(prefix, value):
                turned = signal if left is None else _by_member(signal, left)
                total = total + _inner(turned * spread.unsqueeze(2), turned)
            own = self._projected(prefix, value, signal)
            if own is not None:
                projected = own if projected is None else projected + own
            if prefix != first:
                signal = _by_member(signal, self.weights[f"{prefix}weight"])
        return hidden, total if projected is None else total + _inner(projected, projected)

    def _spreads(self, prefix: str, inputs: Tensor) -> Iterator[tuple[Tensor | None, Tensor]]:
        """Yield variances of a layer's outputs, given its inputs, ``(M, N, out)``, each with its basis."""
        weight, bias = f"{prefix}weight", f"{prefix}bias"
        if weight in self.variance:
            turned = inputs @ self.right[weight] if weight in self.right else inputs
            yield self.left.get(weight), turned.square() @ self.variance[weight].mT
        if bias in self.variance:
            yield self.left.get(bias), self.variance[bias].unsqueeze(1)

    def _projected(self, prefix: str, inputs: Tensor, signal: Tensor) -> Tensor | None:
        """Return the change of the uncertain outputs for every column of ``F`` added to a layer, ``(M, N, K', R)``."""
        weight, bias = (self.factor.get(f"{prefix}{local}") for local in ("weight", "bias"))
        found = None
        if weight is not None:
            signal = signal.to(weight.dtype)
            gradients = signal.unsqueeze(4) * inputs.to(weight.dtype)[:, :, None, None]
            found = _by_member(gradients.flatten(3), weight.flatten(1, 2))
        if bias is None:
            return found
        moved = _by_member(signal.to(bias.dtype), bias)
        return moved if found is None else found + moved


def _with_slope(layer: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of an activation function and its slopes."""
    if isinstance(layer, nn.Tanh):  # the first use of autograd takes half a second
        outputs = inputs.tanh()
        return outputs, 1.0 - outputs.square()
    with torch.enable_grad():
        before = inputs.detach().requires_grad_()
        after = layer(before)
    return after.detach(), torch.autograd.grad(after, before, torch.ones_like(after))[0]


def _forward(inputs: Tensor, weight: Tensor) -> Tensor:
    """Return the products of inputs with each member's weights, ``(M, N, out)``; all members may share the inputs."""
    if len(inputs) > 1 or len(weight) == 1:
        return inputs @ weight.mT
    return (inputs[0] @ weight.flatten(0, 1).T).view(inputs.shape[1], *weight.shape[:2]).transpose(0, 1)


def _by_member(rows: Tensor, matrices: Tensor) -> Tensor:
    """Return ``rows @ matrices``, ``(M, N, K, b)``, for rows ``(M, N, K, a)`` and a matrix ``(a, b)`` per member.

    It is one product per member. Broadcasting would make one per member and row.
    """
    return (rows.flatten(1, 2) @ matrices).view(*rows.shape[:3], -1)


def _inner(first: Tensor, second: Tensor) -> Tensor:
    """Return the inner products of the vectors of a row, ``(M, N, K, K)``."""
    return (first * second).sum(3, keepdim=True) if first.shape[2] == 1 else first @ second.mT


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
        ``None`` if this method or network is not supported, or if the ensemble is too large.
    """
    known = _STACKS.setdefault(posterior, {})
    stack = known.get((method, mc_samples)) or _stack(method, network, posterior, mc_samples)
    if stack is None:
        return None
    known[method, mc_samples] = stack
    if method == "linearized":
        outputs, covariance = stack.linearized(x, likelihoods[0])
        with torch.no_grad():
            return [
                from_gaussian(mean, own, likelihood, How(likelihood, mc_samples, number, common=True))
                for number, (mean, own, likelihood) in enumerate(zip(outputs, covariance, likelihoods, strict=True))
            ]
    draws = stack.outputs(x)
    with torch.no_grad():
        return [from_outputs(own, likelihood) for own, likelihood in zip(draws, likelihoods, strict=True)]


def _stack(method: str, network: nn.Module, posterior: Mixture, mc_samples: int) -> Stack | None:
    layers = plain_layers(network)
    if layers is None or method not in ("linearized", "monte_carlo", "mean"):
        return None
    device = next(network.parameters()).device
    components = cast("tuple[GaussianPosterior, ...]", posterior.components)
    weights = sum(mean.numel() for mean in components[0].mean.values())
    if method != "linearized":
        if len(components) * weights * (mc_samples if method == "monte_carlo" else 1) > LARGEST:
            return None
        if method == "mean":
            draws = [{name: mean.unsqueeze(0) for name, mean in q.mean.items()} for q in components]
        else:
            draws = [q.sample(mc_samples, seed=number) for number, q in enumerate(components)]
        return Stack(layers, _stacked(draws, device), {}, {}, {}, {})
    covariances = [weight_covariance(q).of_random() for q in components]
    shapes = {name: mean.shape for name, mean in components[0].mean.items()}
    parts: list[list[dict[str, Tensor]]] = [
        [dict(q.mean) for q in components],
        [dict(own.variance) for own in covariances],
        [{name: f.reshape(*shapes[name], f.shape[1]) for name, f in own.factor.items()} for own in covariances],
        [dict(own.left) for own in covariances],
        [dict(own.right) for own in covariances],
    ]
    alike = all(_shapes(member) == _shapes(part[0]) for part in parts for member in part)
    size = len(components) * sum(value.numel() for part in parts for value in part[0].values())
    if not alike or size > LARGEST:
        return None
    return Stack(layers, *(_stacked(part, device) for part in parts))


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def _stacked(parts: Sequence[dict[str, Tensor]], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.stack([part[name].to(device) for part in parts]) for name in parts[0]}
