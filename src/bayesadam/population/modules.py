"""Comparison of the modules of several members."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch import Tensor, nn


def tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers by name."""
    return [*module.named_parameters(), *module.named_buffers()]


def signature(module: nn.Module) -> list[object]:
    """A description that is equal for two modules of one architecture, whatever the values of their tensors."""
    kinds: list[object] = [
        (name, f"{type(part).__module__}.{type(part).__qualname__}", part.extra_repr())
        for name, part in module.named_modules()
    ]
    return kinds + [(name, t.shape, t.dtype, t.device, t.requires_grad) for name, t in tensors(module)]


def places(module: nn.Module) -> dict[str, str]:
    """The name of the tensor at every place of a module that has one; tied tensors have several places."""
    names = {tensor: name for name, tensor in tensors(module)}
    return {
        f"{prefix}{'.' if prefix else ''}{own}": names[tensor]
        for prefix, part in module.named_modules()
        for own, tensor in [*part._parameters.items(), *part._buffers.items()]
        if tensor is not None
    }


def constants(modules: Sequence[nn.Module], trained: Container[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors that are not trained, by name: those that differ, each ``(P, ...)``, and those that are equal in all."""
    differing: dict[str, Tensor] = {}
    common: dict[str, Tensor] = {}
    by_name = [dict(tensors(module)) for module in modules]
    for name, tensor in by_name[0].items():
        if name in trained:
            continue
        values = [own[name].detach() for own in by_name]
        if all(value.equal(tensor) for value in values):
            common[name] = tensor.detach().clone()
        else:
            differing[name] = torch.stack(values)
    return differing, common
