"""Nodes in the autograd graph that see a layer's input and output gradient during the backward pass.

Nodes are used and not tensor hooks: a node gets the gradients of all outputs at once, its saved tensors are freed with
the graph and handled like all saved tensors (checkpointing, offloading), and it stays in the graph when the output is
changed in place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from bayesadam.curvature.passes import Call
from bayesadam.functional.autocast import without_autocast


def observed(call: Call, outputs: Sequence[Tensor], saved: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same values, through a node that reports their gradients and the saved tensors to the call."""
    tensors: tuple[Tensor, ...] = _Observe.apply(call, len(outputs), *outputs, *saved)  # type: ignore[no-untyped-call]
    return tensors


def taken_over(call: Call, output: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None, layer: Any) -> Tensor:
    """The same values, through a node that replaces the layer's own in the graph.

    If per-example gradients must be formed, their sum is the layer's gradient, and the layer's own backward pass would
    compute it a second time.

    Args:
        call: Call that gets inputs and output gradient, and may return the parameters' gradients.
        output: Output of the layer.
        inputs: Inputs of the layer.
        weight: Weight of the layer.
        bias: Bias of the layer, if it has one.
        layer: Object that computes the other gradients. Its method ``layer.backward(module, inputs, weight, grad,
            asked)`` returns three tensors (input, weight, bias), with None for those that are not requested.
    """
    result: Tensor = _TakeOver.apply(call, layer, [output.detach()], inputs, weight, bias)  # type: ignore[no-untyped-call]
    return result


def _once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A backward function that refuses to be differentiated, as no hook would see the gradient of its result."""

    @functools.wraps(backward)
    def checked(*args: Any) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph must be False while per-example gradients are squared, got True: a penalty on gradients "
                "has a part in the gradient that is not that of an example's loss (use an optimizer without "
                "PerExampleSquares, or its eval() for derivatives outside of the training)"
            )
        return backward(*args)

    return checked


class _Observe(Function):
    @staticmethod
    def forward(ctx: Any, call: Call, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.others = call, len(tensors) - count
        ctx.save_for_backward(*tensors[count:])
        ctx.set_materialize_grads(False)
        return tuple(t.detach() for t in tensors[:count])

    @staticmethod
    @_once
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        with without_autocast(grads):
            ctx.call.receive(ctx.saved_tensors, grads, sums=False)
        return (None, None, *grads, *([None] * ctx.others))


class _TakeOver(Function):
    @staticmethod
    def forward(
        ctx: Any, call: Call, layer: Any, output: list[Tensor], inputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.call, ctx.layer = call, layer
        ctx.save_for_backward(inputs, weight)
        # The output is in a list, since autograd would make a view of a tensor argument that is returned.
        return output[0]

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        inputs, weight = ctx.saved_tensors
        with without_autocast((grad,)):
            is_of_parameters = not ctx.call.during.announced
            sums = ctx.call.receive((inputs,), (grad,), sums=is_of_parameters)
            _, _, _, *needed = ctx.needs_input_grad
            if not is_of_parameters:  # PyTorch says what the forward pass would need
                needed[1:] = [False, False]
            asked = (needed[0], needed[1] and "weight" not in sums, needed[2] and "bias" not in sums)
            module: nn.Module = ctx.call.unit.module
            others = ctx.layer.backward(module, inputs, weight, grad, asked)
        gradients = (others[0], sums.get("weight", others[1]), sums.get("bias", others[2]))
        return (None, None, None, *(g if need else None for g, need in zip(gradients, needed, strict=True)))
