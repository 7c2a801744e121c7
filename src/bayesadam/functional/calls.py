"""Calling a module with other tensors in place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers by name."""
    return [*module.named_parameters(), *module.named_buffers()]


def places(module: nn.Module) -> dict[str, str]:
    """The name of the tensor at every place of a module that has one; tied tensors have several places."""
    names = {tensor: name for name, tensor in tensors(module)}
    return {
        f"{prefix}{'.' if prefix else ''}{place}": names[tensor]
        for prefix, part in module.named_modules()
        for place, tensor in [*part._parameters.items(), *part._buffers.items()]
        if tensor is not None
    }


def computes_as(module: nn.Module, cls: type[nn.Module]) -> bool:
    """Whether a module is of a class and has its ``forward``, neither overridden nor set on the module itself."""
    return isinstance(module, cls) and type(module).forward is cls.forward and not has_own_forward(module)


def has_own_forward(module: nn.Module) -> bool:
    """Whether a ``forward`` was set on a module itself, in place of that of its class."""
    return "forward" in vars(module)


def first_argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The first argument of a call, which may have been given by its name, as ``layer(input=x)``."""
    return args[0] if args else next(iter(kwargs.values()))


def version_of(tensor: Tensor) -> int:
    """The number of changes in place so far; 0 in inference mode and in compiled code, where they are not counted."""
    return 0 if torch.compiler.is_compiling() or tensor.is_inference() else tensor._version


def call_with(module: nn.Module, values: Mapping[str, Tensor], args: Any, kwargs: dict[str, Any] | None = None) -> Any:
    """Call a module with other tensors in place of its own of these names, wherever they are, and put its own back.

    With ``functional_call``'s ``tie_weights``, a module that has two names would keep the other tensors: PyTorch
    exchanges them once for each name, and then puts back what it found the second time.
    """
    placed = {place: values[name] for place, name in places(module).items() if name in values}
    return functional_call(module, placed, args, kwargs, tie_weights=False)
