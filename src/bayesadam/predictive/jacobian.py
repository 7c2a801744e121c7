"""Jacobians of any network with respect to its random weights, by autograd mapped over the data points."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from bayesadam.functional.autocast import without_autocast
from bayesadam.modules.mean_network import MeanNetwork
from bayesadam.predictive.batches import Rows, is_out_of_memory
from bayesadam.predictive.covariance import OutputCovariance


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
        self.pulled = Pulled(network)

    def bytes_each(self, outputs: int) -> int:
        """Memory that the Jacobian of one data point and the backward passes for it take, in bytes."""
        largest = max(sum(self.network.bytes_of(name) for name in names) for names in self.groups)
        return outputs * (largest + self.saved_bytes)

    def add_to(self, covariance: OutputCovariance, rows: Rows) -> None:
        """Add all contributions of a chunk of data points."""
        basis = torch.eye(covariance.total.shape[1], device=covariance.total.device)
        for names in self.groups:
            for name, products in self.pulled(rows, names, basis.expand(rows.count, *basis.shape)).items():
                with without_autocast([products]):
                    covariance.add(name, products)


class Pulled:
    """Products of vectors with the Jacobians of data points: by ``vmap``, or row by row for networks that cannot be
    mapped (control flow, ``.item()``, recurrent layers, a custom function).

    Args:
        network: The network.
        loop_without_memory: Whether to go on row by row when memory runs out, rather than to raise the error.
    """

    def __init__(self, network: MeanNetwork, *, loop_without_memory: bool = False) -> None:
        self.network = network
        self._loop_without_memory = loop_without_memory
        self._can_map = True

    def __call__(self, rows: Rows, names: list[str], vectors: Tensor) -> dict[str, Tensor]:
        """Return ``v' J_n`` by name, ``(N, R, number of weights)``, for vectors ``(N, R, ...)`` like the outputs."""
        if self._can_map:
            try:
                with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):  # the fused ones are not mapped
                    warnings.simplefilter("ignore")  # about operations that vmap runs in a loop
                    return self._by_map(rows, names, vectors)
            except (RuntimeError, ValueError) as error:
                if isinstance(error, RuntimeError) and is_out_of_memory(error) and not self._loop_without_memory:
                    raise
                self._can_map = False
        return self._by_loop(rows, names, vectors)

    def _by_map(self, rows: Rows, names: list[str], vectors: Tensor) -> dict[str, Tensor]:
        all_rows, example = rows.examples()
        tensors = {name: tensor.detach() for name, tensor in self.network.tensors.items()}
        random = {name: tensors.pop(name) for name in names}

        def pulled(vectors: Tensor, row: list[Tensor]) -> dict[str, Tensor]:
            batch_of_one = example(row)
            pulled = vjp(lambda free: self.network.parts(batch_of_one, {**tensors, **free}).flatten(), random)
            (gradients,) = vmap(pulled[1])(vectors.reshape(len(vectors), -1).to(pulled[0].dtype))
            return {name: gradient.unsqueeze(-1).flatten(1) for name, gradient in gradients.items()}

        with _PlainPReLU():
            return dict(vmap(pulled)(vectors, all_rows))

    def _by_loop(self, rows: Rows, names: list[str], vectors: Tensor) -> dict[str, Tensor]:
        random = [self.network.tensors[name] for name in names]
        gradients_by_name: dict[str, list[Tensor]] = {name: [] for name in names}
        for row, of_row in enumerate(vectors):
            values = self.network.graph(rows.part(row, row + 1).batch)
            for k, vector in enumerate(of_row.to(values.dtype), 1):
                gradients = torch.autograd.grad(
                    values,
                    random,
                    vector.reshape(values.shape),
                    retain_graph=k < len(of_row),
                    allow_unused=True,
                    materialize_grads=True,
                )
                for name, gradient in zip(names, gradients, strict=True):
                    gradients_by_name[name].append(gradient.to_dense().flatten())
        return {
            name: torch.stack(gradients).view(*vectors.shape[:2], -1) for name, gradients in gradients_by_name.items()
        }


class _PlainPReLU(TorchFunctionMode):
    """PReLU by simpler operations, since PyTorch 2.13 differentiates its own wrongly within two calls of ``vmap``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.prelu, Tensor.prelu):
            return func(*args, **(kwargs or {}))
        return _prelu(*args, **(kwargs or {}))


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    slopes = weight.view(-1, *[1] * (input.ndim - 2)) if input.ndim > 1 else weight  # channels are the second axis
    return input.where(input > 0, slopes * input)


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
