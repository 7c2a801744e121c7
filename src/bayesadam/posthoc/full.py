"""The whole curvature of a small model, from the Jacobians of its examples."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.func import vjp, vmap

from bayesadam.curvature.reentrant import RefusingReentrant
from bayesadam.posterior.dense import MAX_WEIGHTS
from bayesadam.posthoc.network import Network
from bayesadam.predictive.batches import Rows, call

CHUNK = 2**22
"""Approximate number of values in one batch of Jacobians."""


class FullSum:
    """``sum_n J_n' H_n J_n`` over all trainable weights, in float64.

    Raises:
        ValueError: There are too many weights.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.parameters = network.trainable
        size = sum(p.numel() for p in self.parameters.values())
        check_size("full", size, "'kron', 'last_layer' or 'diagonal'")
        device = next(iter(self.parameters.values())).device
        self.matrix = torch.zeros(size, size, dtype=torch.float64, device=device)

    def add(self, rows: Rows, target: Tensor) -> Tensor:
        """Add a batch and return its outputs, detached."""
        with torch.no_grad():
            output = self.network(rows.batch)
        if parts := self.network.parts(rows, output, target):
            return torch.cat([self.add(*part) for part in parts])
        vectors = torch.stack([*self.network.columns(output, target)[0]], dim=1)
        step = max(1, CHUNK // (vectors.shape[1] * len(self.matrix)))
        for start in range(0, len(output), step):
            pulled = self._pulled(rows.part(start, start + step), vectors[start : start + step])
            pulled = pulled.reshape(-1, len(self.matrix)).double()
            self.matrix.addmm_(pulled.T, pulled)
        return output

    def result(self) -> Tensor:
        """The matrix ``(D, D)``, with weights numbered tensor by tensor as in
        :class:`bayesadam.DenseGaussian`.
        """
        return self.matrix

    def close(self) -> None:
        """Do nothing, since the model has no hooks."""

    def _pulled(self, rows: Rows, vectors: Tensor) -> Tensor:
        """``J_n' v`` for the vectors ``(N, R, ...)`` of every example: ``(N, R, D)``."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about operations that vmap runs in a loop
                return self._by_map(rows, vectors)
        except (RuntimeError, ValueError):  # some modules, such as recurrent ones, do not support vmap
            return self._by_loop(rows, vectors)

    def _by_map(self, rows: Rows, vectors: Tensor) -> Tensor:
        all_rows, example = rows.examples()
        weights = {name: parameter.detach() for name, parameter in self.parameters.items()}

        def pulled(vectors: Tensor, row: list[Tensor]) -> Tensor:
            """Return the products for one example."""
            batch_of_one = example(row)

            def output(weights: dict[str, Tensor]) -> Tensor:
                found = call(self.network.model, batch_of_one, self.network.output, weights)
                return found.reshape(vectors[:1].shape)  # a model may squeeze the axis of a single row

            gradients = vmap(vjp(output, weights)[1])(vectors.unsqueeze(1))[0]
            return torch.cat([gradients[name].unsqueeze(-1).flatten(1) for name in weights], dim=1)

        found: Tensor = vmap(pulled)(vectors, all_rows)
        return found

    def _by_loop(self, rows: Rows, vectors: Tensor) -> Tensor:
        parameters = list(self.parameters.values())
        found = []
        for number, each in enumerate(vectors):
            with torch.enable_grad(), RefusingReentrant(parameters):
                output = self.network(rows.part(number, number + 1).batch).reshape(each[:1].shape)
            for vector in each:
                gradients = torch.autograd.grad(
                    output, parameters, vector[None], retain_graph=True, allow_unused=True, materialize_grads=True
                )
                found.append(torch.cat([gradient.to_dense().flatten() for gradient in gradients]))
        return torch.stack(found).view(*vectors.shape[:2], -1)


def check_size(structure: str, size: int, other: str) -> None:
    """Raise ``ValueError`` if a dense matrix over this many weights is too large."""
    if size > MAX_WEIGHTS:
        raise ValueError(
            f"structure must be {other} where a matrix would have more than {MAX_WEIGHTS:,} rows, got {structure!r} "
            f"for {size:,} weights, which is {size**2 * 8 / 1e9:,.1f} GB"
        )
