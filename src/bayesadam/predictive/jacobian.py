"""Jacobians of any network with respect to its random weights, by autograd mapped over the data points."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayesadam.functional.autocast import without_autocast
from bayesadam.predictive.batches import Rows, is_out_of_memory
from bayesadam.predictive.covariance import OutputCovariance
from bayesadam.predictive.network import MeanNetwork


class Jacobians:
    """Full Jacobians of the data points of a chunk, for as many weight tensors at once as fit into memory.

    Args:
        network: The network at the mean.
        row: One data point, on which the network is examined.
        limit: Largest size of a Jacobian in bytes.
    """

    def __init__(self, network: MeanNetwork, row: Rows, limit: int) -> None:
        self.network = network
        outputs, self.saved_bytes = network.look(row.batch)
        self.groups = _groups(network, limit // outputs)
        self.mapped = True

    def bytes_each(self, outputs: int) -> int:
        """Memory that the Jacobian of one data point and the backward passes for it take, in bytes."""
        largest = max(sum(self.network.bytes_of(name) for name in names) for names in self.groups)
        return outputs * (largest + self.saved_bytes)

    def add_to(self, covariance: OutputCovariance, rows: Rows) -> None:
        """Add all contributions of a chunk of data points."""
        outputs = covariance.total.shape[1]
        for names in self.groups:
            for name, found in self._jacobians(rows, names, outputs):
                with without_autocast([found]):
                    covariance.add(name, found.unsqueeze(-1).flatten(2))  # of a scalar, too

    def _jacobians(self, rows: Rows, names: list[str], outputs: int) -> Iterator[tuple[str, Tensor]]:
        if self.mapped:
            try:
                return iter(self._by_map(rows, names, outputs).items())
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                self.mapped = False  # something that cannot be mapped: control flow, .item(), a custom function
        return iter(self._by_loop(rows, names, outputs).items())

    def _by_map(self, rows: Rows, names: list[str], outputs: int) -> dict[str, Tensor]:
        all_rows, example = rows.examples()
        tensors = {name: tensor.detach() for name, tensor in self.network.tensors.items()}
        random = {name: tensors.pop(name) for name in names}
        basis = torch.eye(outputs, device=next(iter(random.values())).device)

        def jacobian(row: list[Tensor]) -> dict[str, Tensor]:
            batch_of_one = example(row)
            pulled = vjp(lambda free: self.network.parts(batch_of_one, {**tensors, **free}).reshape(-1), random)
            (gradients,) = vmap(pulled[1])(basis.to(pulled[0].dtype))
            return dict(gradients)

        with sdpa_kernel(SDPBackend.MATH):  # the fused ones are not mapped but called data point by data point
            return dict(vmap(jacobian)(all_rows))

    def _by_loop(self, rows: Rows, names: list[str], outputs: int) -> dict[str, Tensor]:
        random = [self.network.tensors[name] for name in names]
        found: dict[str, list[Tensor]] = {name: [] for name in names}
        for row in range(rows.count):
            values = self.network.graph(rows.part(row, row + 1).batch)
            for k, basis in enumerate(torch.eye(outputs, dtype=values.dtype, device=values.device)):
                gradients = torch.autograd.grad(
                    values,
                    random,
                    basis.view_as(values),
                    retain_graph=k + 1 < outputs,
                    allow_unused=True,
                    materialize_grads=True,
                )
                for name, gradient in zip(names, gradients, strict=True):
                    found[name].append(gradient.to_dense())
        return {
            name: torch.stack(gradients).view(rows.count, outputs, *gradients[0].shape)
            for name, gradients in found.items()
        }


def _groups(network: MeanNetwork, limit: int) -> list[list[str]]:
    """Divide the random tensors into groups of at most so many bytes, or of one tensor if it is larger."""
    groups: list[list[str]] = []
    size = 0
    for name in network.names:
        each = network.bytes_of(name)
        if not groups or size + each > limit:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += each
    return groups
