"""The whole curvature of a small model, from the Jacobians of its examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bayesadam.modules.calls import call
from bayesadam.modules.mean_network import MeanNetwork
from bayesadam.modules.perceptrons import Layers, plain_layers
from bayesadam.posterior.dense import MAX_WEIGHTS
from bayesadam.posthoc.trained_network import Hessians, TrainedNetwork, too_large
from bayesadam.predictive.batches import Rows
from bayesadam.predictive.jacobian import Pulled

CHUNK = 2**22
"""Approximate number of values in one batch of Jacobians."""


class FullSum:
    """``sum_n J_n' H_n J_n`` over all trainable weights, in float64.

    Raises:
        ValueError: There are too many weights.
    """

    def __init__(self, network: TrainedNetwork) -> None:
        self.network = network
        self.parameters = network.trainable
        mean = MeanNetwork(network.model, list(self.parameters), network.output, lambda output: output)
        self.pulled = Pulled(mean, loop_without_memory=True)
        size = sum(p.numel() for p in self.parameters.values())
        if size > MAX_WEIGHTS:
            raise too_large("full", size, "'kron', 'last_layer' or 'diagonal'")
        self.layers = _perceptron(network)
        device = next(iter(self.parameters.values())).device
        self.matrix = torch.zeros(size, size, dtype=torch.float64, device=device)

    def add(self, rows: Rows, target: Tensor) -> Hessians:
        """Add a batch and return the Hessians at its outputs."""
        with torch.no_grad():
            output = call(self.network.model, rows.batch, self.network.output)
        hessians = Hessians(self.network, output, target)
        if parts := hessians.parts(rows):
            for divided in parts:
                self.add(*divided)
            return hessians
        vectors = torch.stack([*hessians.columns()[0]], dim=1)
        step = max(1, CHUNK // (vectors.shape[1] * len(self.matrix)))
        for start in range(0, len(output), step):
            each, part = vectors[start : start + step], rows.part(start, start + step)
            if self.layers and isinstance(part.batch, Tensor) and part.batch.ndim == 2:
                pulled = _of_perceptron(self.layers, part.batch, each)
            else:
                pulled = torch.cat(list(self.pulled(part, list(self.parameters), each).values()), dim=2)
            pulled = pulled.flatten(0, 1).double()
            self.matrix.addmm_(pulled.T, pulled)
        return hessians

    def result(self) -> Tensor:
        """The matrix ``(D, D)``, with weights numbered tensor by tensor as in
        :class:`bayesadam.DenseGaussian`.
        """
        return self.matrix

    def close(self) -> None:
        """Do nothing, since the model has no hooks."""


def _perceptron(network: TrainedNetwork) -> Layers:
    """The layers of a plain perceptron all of whose weights are trainable; none of another network."""
    layers = plain_layers(network.model) or []
    names = [f"{name}{part}" for name, layer in layers for part, _ in layer.named_parameters()]
    in_place = any(getattr(layer, "inplace", False) for _, layer in layers)  # the gradient would be of another tensor
    return layers if network.output is None and names == list(network.trainable) and not in_place else []


@torch.enable_grad()
def _of_perceptron(layers: Layers, x: Tensor, vectors: Tensor) -> Tensor:
    """Products of vectors ``(N, R, K)`` with the Jacobians, ``(N, R, D)``, without a map, which takes seconds at first:
    the gradient of a layer's weight is the product of its input with the gradient of its output.
    """
    linear: list[tuple[nn.Module, Tensor, Tensor]] = []
    hidden = x
    for _, layer in layers:
        before, hidden = hidden, layer(hidden)
        if isinstance(layer, nn.Linear):
            linear.append((layer, before.detach(), hidden))
    columns = []
    for vector in vectors.unbind(1):
        slopes = torch.autograd.grad((hidden * vector).sum(), [output for *_, output in linear], retain_graph=True)
        parts = []
        for (layer, before, _), slope in zip(linear, slopes, strict=True):
            parts.append((slope.unsqueeze(2) * before.unsqueeze(1)).flatten(1))
            parts += [slope] if layer.bias is not None else []
        columns.append(torch.cat(parts, dim=1))
    return torch.stack(columns, dim=1)
