"""The whole curvature of a small model, from the Jacobians of its examples."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesadam.curvature.perceptron import Perceptron
from bayesadam.curvature.totals import Scratch
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
                pulled = _of_perceptron(self.layers, self.parameters, part.batch, each)
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
    return layers if network.output is None and names == list(network.trainable) else []


def _of_perceptron(layers: Layers, parameters: Mapping[str, Tensor], x: Tensor, vectors: Tensor) -> Tensor:
    """Products of vectors ``(N, R, K)`` with the Jacobians, ``(N, R, D)``, in closed form and so without a map, which
    takes seconds at first: every example is a network with a minibatch of one, and every vector a sample.
    """
    sizes = vectors.shape[:2]
    weights = {name: parameter.detach().expand(*sizes, *parameter.shape) for name, parameter in parameters.items()}
    trace = Perceptron(layers, weights, x.unsqueeze(1), scratch=Scratch())
    gradients, _ = trace.backward(vectors.unsqueeze(2))
    return torch.cat(gradients, dim=2)
