"""Networks inside wrappers; the names of weights and buffers are those of the innermost network."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bayesadam.checks import check_model
from bayesadam.modules.sharding import full


def unwrapping(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a model and the modules that it wraps, from the outside in; all have the same parameters by other names.

    Wrappers are ``torch.compile``'s, ``DistributedDataParallel``, and any other whose inner network is its ``module``.
    The forward method of a wrapper may compute another function than the network inside.

    Raises:
        ValueError: The model is not a network.
    """
    check_model(model)
    while True:
        yield model
        inner = getattr(model, "_orig_mod", None)
        inner = getattr(model, "module", None) if inner is None else inner
        if not isinstance(inner, nn.Module) or set(map(id, inner.parameters())) != set(map(id, model.parameters())):
            return
        model = inner


def innermost(model: nn.Module) -> nn.Module:
    """The last of the modules of :func:`unwrapping`, by whose names weights are known."""
    *_, inner = unwrapping(model)
    return inner


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside ``DistributedDataParallel`` and ``torch.compile``'s module, or the model itself.

    Raises:
        ValueError: The model is not a network.
    """
    check_model(model)
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # a copy that is being made has no attributes yet
            model = model.get_submodule("_orig_mod")
        else:
            return model


def names_in(model: nn.Module) -> dict[Tensor, str]:
    """The names of a model's parameters, without prefixes of DDP or torch.compile."""
    names: dict[Tensor, str] = {}
    for name, parameter in innermost(model).named_parameters():
        names[parameter] = name
    return names


@torch.no_grad()
def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a model's buffers by name, such as running statistics, without those that its state dict leaves out."""
    buffers = {}
    *_, inner = unwrapping(model)
    for path, module in inner.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                buffers[f"{path}.{name}" if path else name] = full(buffer).clone()
    return buffers
