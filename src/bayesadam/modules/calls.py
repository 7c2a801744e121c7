"""Calling a network with its inputs, in any form that a function of the library takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""What a network is called with: a tensor; a tuple, ``net(*inputs)``; or a dict, ``net(**inputs)``."""

Output = Callable[[Any], Tensor]
"""Function that takes the output tensor out of what a network returns."""


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments for a model: a dict by name, a tuple in order, anything else as the only
    argument.
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    several = isinstance(inputs, tuple) and not isinstance(inputs, PackedSequence)
    return inputs if several else (inputs,), {}


def call(model: nn.Module, inputs: Any, output: Output | None, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
    """Call a model and return its output tensor, with other tensors in place of its own if they are given.

    Raises:
        TypeError: The model does not return a tensor.
    """
    args, kwargs = arguments(inputs)
    result = model(*args, **kwargs) if tensors is None else call_with(model, tensors, args, kwargs)
    if output is not None:
        result = output(result)
    if not isinstance(result, Tensor):
        raise TypeError(
            "output must be given for a model that returns no tensor (output=lambda out: out.logits, say), "
            f"got {type(result).__name__}"
        )
    return result


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
    return isinstance(module, cls) and type(module).forward is cls.forward and "forward" not in vars(module)


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


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
