"""Calls of layers that have a closed form, and nodes that replace the backward pass of their weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.curvature.layers import ConvForm, EmbeddingForm, Form, LinearForm, Sink
from bayesadam.curvature.observe import observed, taken_over
from bayesadam.curvature.passes import Call, no_batch
from bayesadam.curvature.totals import Scratch
from bayesadam.functional.curvature import wide
from bayesadam.modules.calls import first_argument
from bayesadam.modules.sharding import is_sharded


class ClosedForm:
    """The method of a layer with a closed form."""

    def __init__(self, form: Form) -> None:
        self.form = form

    def capture(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Part of the :class:`Method` protocol."""
        inputs: Tensor = first_argument(args, kwargs)
        if is_sharded(inputs):
            raise RuntimeError(f"the input of {call.unit} must be a plain tensor, got a DTensor")
        if isinstance(self.form, EmbeddingForm):
            inputs, output = _with_examples(call, inputs, output)
        if inputs.ndim < self.form.least_axes(call.unit.module) or inputs.shape[0] != call.during.size:
            raise no_batch(call.unit, call.during.size, inputs.shape)
        if self._takes_over(call, inputs, output):
            weight, bias = call.unit.module._parameters["weight"], call.unit.module._parameters["bias"]
            assert weight is not None
            return taken_over(call, output, inputs, weight, bias, self.form)
        return observed(call, [output], [inputs])[0]

    def squares(self, call: Call, sink: Sink) -> None:
        """Part of the :class:`Method` protocol."""
        self.form.squares(call.unit.module, *self._whole(call), sink)

    def gradients(self, call: Call, part: slice, names: Sequence[str], scratch: Scratch) -> dict[str, Tensor]:
        """Part of the :class:`Method` protocol."""
        inputs, grads = self._whole(call)
        return self.form.gradients(call.unit.module, inputs[part], grads[part], names, scratch)

    def bytes_each(self, call: Call) -> int:
        """Part of the :class:`Method` protocol."""
        return self.form.bytes_each(call.unit.module, *self._whole(call))

    def merges(self, call: Call) -> bool:
        """Part of the :class:`Method` protocol."""
        return isinstance(self.form, LinearForm) and math.prod(call.inputs[0].shape[1:-1]) == 1

    def _whole(self, call: Call) -> tuple[Tensor, Tensor]:
        """Inputs and output gradients in a common dtype, float32 or wider."""
        (inputs,), (grads,) = call.inputs, call.grads
        assert grads is not None
        dtype = wide(grads.dtype)
        if inputs.dtype != dtype and inputs.is_floating_point():
            inputs = inputs.to(dtype)
        return self.form.prepare(call.unit.module, inputs, grads.to(dtype))

    def _takes_over(self, call: Call, inputs: Tensor, output: Tensor) -> bool:
        module = call.unit.module
        if isinstance(self.form, LinearForm):
            if inputs.ndim == 2 or math.prod(inputs.shape[1:-1]) == 1:
                return False
        elif not isinstance(self.form, ConvForm) or isinstance(module.padding, str) or module.padding_mode != "zeros":
            return False
        weight = module._parameters["weight"]
        return (
            "weight" in call.names
            and type(weight) is nn.Parameter
            and weight.dtype == inputs.dtype == output.dtype
            and weight.dtype in (torch.float32, torch.float64)
        )


def _with_examples(call: Call, indices: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat the lookup of positions, which all examples share, once for each example.

    The gradient then arrives example by example, and not as the sum.
    """
    size = call.during.size
    if size is None or indices.ndim == 0:
        return indices, output
    if indices.ndim == 1 and _are_positions(call, indices, size):
        return indices.expand(size, -1), output.expand(size, *output.shape)
    if indices.ndim > 1 and len(indices) == 1 != size:
        return indices.expand(size, *indices.shape[1:]), output.expand(size, *output.shape[1:])
    return indices, output


def _are_positions(call: Call, indices: Tensor, size: int) -> bool:
    """Whether a list of indices has positions that all examples share, and not one index for each example.

    If there are as many positions as examples, the list alone does not tell, and earlier calls decide.
    """
    collector = call.collector()
    known_positions = {} if collector is None else collector.positions
    if len(indices) != size:
        return known_positions.setdefault(call.unit.name, True)
    count_up = torch.arange(size, device=indices.device, dtype=indices.dtype)
    if indices.untyped_storage().data_ptr() in call.during.storages or not torch.equal(indices, count_up):
        return known_positions.setdefault(call.unit.name, False)
    if call.unit.name in known_positions:
        return known_positions[call.unit.name]
    if size == 1:
        return False
    raise RuntimeError(
        f"the indices of {call.unit} must be unambiguous, got 0, 1, ..., {size - 1} of shape ({size},), which may be "
        f"positions or one index for each of {size} examples (give positions the shape (1, {size}))"
    )
