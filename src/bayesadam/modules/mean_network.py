"""A network at the posterior's mean as a function of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.modules.calls import Output, call
from bayesadam.modules.reentrant import RefusingReentrant


def own_names(model: nn.Module, covered: Mapping[str, Tensor]) -> dict[str, str]:
    """Map the names of parameters that a posterior covers, which may be those inside a wrapper, to the model's own
    names.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {name: names[id(tensor)] for name, tensor in covered.items()}


class MeanNetwork:
    """The model as a function of its weights; its tensors must already be at the posterior's mean.

    Args:
        model: The model in evaluation mode.
        names: Names of the random tensors.
        output: Function that takes the output tensor out of what the model returns; see :func:`bayesadam.predict`.
        part: Function that takes the required part ``(n, ...)`` out of the output.

    Attributes:
        tensors: All parameters and buffers by name, detached; those that are random require gradients.
    """

    def __init__(
        self, model: nn.Module, names: list[str], output: Output | None, part: Callable[[Tensor], Tensor]
    ) -> None:
        self.model = model
        self.names = names
        self.output = output
        self.part = part
        named = {**dict(model.named_buffers()), **dict(model.named_parameters())}
        self.tensors = {name: tensor.detach() for name, tensor in named.items()}
        for name in names:
            self.tensors[name].requires_grad_()

    def bytes_of(self, name: str) -> int:
        """Memory of a tensor in bytes."""
        return self.tensors[name].numel() * self.tensors[name].element_size()

    def look(self, batch: Any) -> tuple[int, int]:
        """Count the required numbers of a batch, and the bytes that its graph keeps beside the model's own tensors.

        Raises:
            RuntimeError: As for :meth:`graph`.
        """
        addresses = {tensor.untyped_storage().data_ptr() for tensor in self.tensors.values()}
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor.detach()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = self.graph(batch)
        return output.numel(), sum(size for address, size in sizes.items() if address not in addresses)

    def outputs(self, batch: Any) -> Tensor:
        """The whole output of the model itself."""
        return call(self.model, batch, self.output)

    def parts(self, batch: Any, tensors: dict[str, Tensor]) -> Tensor:
        """The required part of the output as a function of the tensors."""
        return self.part(call(self.model, batch, self.output, tensors))

    def graph(self, batch: Any) -> Tensor:
        """The required part of the output with a graph from the random tensors, ``(n, ...)``.

        Raises:
            RuntimeError: There is no such graph, or random weights are used inside a reentrant checkpoint, which hides
                them.
        """
        with torch.enable_grad(), RefusingReentrant(self.tensors[name] for name in self.names):
            output = self.parts(batch, self.tensors)
        if not output.requires_grad:
            raise RuntimeError(
                "the model's output must be differentiable with respect to the random weights, got one that does not "
                "depend on them"
            )
        return output
