"""Calling a network with its inputs, in any form that a function of the library takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bayesadam.functional.calls import call_with

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
