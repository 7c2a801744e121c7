"""Per-example gradients of PyTorch's recurrent layers and cells, for all examples together, by time steps.

The layers are computed again with a zero added to the values before every activation. The gradients of these zeros are
those of a linear function's outputs at every step, and with the function's inputs they give the examples' gradients of
its weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._pytree import tree_flatten, tree_unflatten

from bayesadam.curvature.passes import Unit
from bayesadam.curvature.replay import Context, Replay

Cell = Callable[[Tensor, Tensor, list[Tensor]], list[Tensor]]
"""Function of the values from the input and from the hidden state, and of the old state, that gives the new one."""

LSTMS, GRUS = (nn.LSTM, nn.LSTMCell), (nn.GRU, nn.GRUCell)
CELLS = (nn.RNNCell, nn.LSTMCell, nn.GRUCell)


@dataclass
class Use:
    """A linear function of every time step.

    Attributes:
        names: Names of its weight and bias.
        inputs: Its inputs, ``(T, N, I)``.
        zeros: Zeros that were added to its outputs, ``(T, N, O)``.
    """

    names: tuple[str, str]
    inputs: Tensor
    zeros: Tensor


class Recurrent(Replay):
    """The method of ``nn.RNN``, ``nn.LSTM``, ``nn.GRU`` and their cells."""

    def replayed(
        self,
        unit: Unit,
        context: Context,
        parameters: dict[str, Tensor],
        fixed: dict[str, Tensor],
        inputs: list[Tensor],
        grads: list[Tensor],
        used: list[int],
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Outputs and per-example gradients, as in the base class."""
        given = list(context.leaves)
        for leaf, tensor in zip(context.inputs, inputs, strict=True):
            given[leaf.position] = tensor if leaf.axis is None else tensor.movedim(0, leaf.axis)
        args, kwargs = tree_unflatten(given, context.spec)
        with torch.enable_grad():
            returned, uses = unrolled(unit.module, {**fixed, **parameters}, *args, **kwargs)
            leaves, _ = tree_flatten(returned)
            results = [leaves[leaf.position].movedim(leaf.axis or 0, 0) for leaf in context.outputs]
            ends = [results[number] for number in used]
            given = [grads[number].to(end.dtype) for number, end in zip(used, ends, strict=True)]
            slopes = torch.autograd.grad(
                ends, [use.zeros for use in uses], given, allow_unused=True, materialize_grads=True
            )
        gradients = {}
        for use, slope in zip(uses, slopes, strict=True):
            weight, bias = (f"module.{name}" for name in use.names)
            if weight in parameters:
                gradients[weight] = slope.permute(1, 2, 0) @ use.inputs.detach().transpose(0, 1)
            if bias in parameters:
                gradients[bias] = slope.sum(0)
        return [result.detach() for result in results], gradients


def is_recurrent(module: nn.Module) -> bool:
    """Whether a module is one of PyTorch's recurrent layers or cells, and nothing else."""
    if is_parametrized(module) or type(module) not in (nn.RNN, nn.LSTM, nn.GRU, *CELLS):
        return False
    names: Any = getattr(module, "_flat_weights_names", ["weight_ih", "weight_hh", "bias_ih", "bias_hh"])
    return set(module._parameters) == set(names)


def unrolled(module: Any, weights: Mapping[str, Tensor], input: Tensor, hx: Any = None) -> tuple[Any, list[Use]]:
    """What the module returns for these weights, by ``module.<name>``, and the linear functions inside."""
    several = isinstance(module, LSTMS)
    start = [] if hx is None else list(hx) if several else [hx]
    if isinstance(module, CELLS):
        named = {name.removeprefix("module."): value for name, value in weights.items()}
        _, state, uses = _layer(module, named, input.unsqueeze(0), start or _zeros(module, input.unsqueeze(0)), "")
        return (tuple(state) if several else state[0]), uses
    values = input.transpose(0, 1) if module.batch_first else input
    uses = []
    ends: list[list[Tensor]] = []
    directions = ("", "_reverse")[: 1 + module.bidirectional]
    for layer in range(module.num_layers):
        outputs = []
        for suffix in directions:
            state = [part[len(ends)] for part in start] or _zeros(module, values)
            end = f"_l{layer}{suffix}"
            named = {
                name.removeprefix("module.").removesuffix(end): value
                for name, value in weights.items()
                if name.endswith(end)
            }
            hidden, state, made = _layer(module, named, values.flip(0) if suffix else values, state, end)
            uses += made
            outputs.append(hidden.flip(0) if suffix else hidden)
            ends.append(state)
        values = torch.cat(outputs, -1)
    last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
    output = values.transpose(0, 1) if module.batch_first else values
    return (output, last if several else last[0]), uses


def _zeros(module: Any, values: Tensor) -> list[Tensor]:
    """The state at the beginning where none is given."""
    hidden = values.new_zeros(values.shape[1], getattr(module, "proj_size", 0) or module.hidden_size)
    return [hidden, values.new_zeros(values.shape[1], module.hidden_size)] if isinstance(module, LSTMS) else [hidden]


def _layer(
    module: Any, weights: Mapping[str, Tensor], values: Tensor, state: list[Tensor], end: str
) -> tuple[Tensor, list[Tensor], list[Use]]:
    """Outputs, last state and linear functions of one direction of a layer, whose weights' names end with ``end``."""
    of_input = functional.linear(values, weights["weight_ih"], weights.get("bias_ih"))
    zeros = torch.zeros_like(of_input, requires_grad=True)
    apart = isinstance(module, GRUS)  # multiplies a part of what comes from the hidden state before it adds
    of_state = torch.zeros_like(of_input, requires_grad=True) if apart else zeros
    project = weights.get("weight_hr")
    of_output = None if project is None else values.new_zeros(*values.shape[:2], len(project)).requires_grad_()
    cell = _cell(module)
    before, wide, outputs = [], [], []
    for step, (x, zero) in enumerate(zip((of_input + zeros).unbind(), of_state.unbind(), strict=True)):
        before.append(state[0])
        h = functional.linear(state[0], weights["weight_hh"], weights.get("bias_hh"))
        state = cell(x, h + zero if apart else h, state)
        if project is not None and of_output is not None:
            wide.append(state[0])
            state[0] = functional.linear(state[0], project) + of_output[step]
        outputs.append(state[0])
    uses = [
        Use((f"weight_ih{end}", f"bias_ih{end}"), values, zeros),
        Use((f"weight_hh{end}", f"bias_hh{end}"), torch.stack(before), of_state),
    ]
    if of_output is not None:
        uses.append(Use((f"weight_hr{end}", ""), torch.stack(wide), of_output))
    return torch.stack(outputs), state, uses


def _cell(module: Any) -> Cell:
    def lstm(x: Tensor, h: Tensor, state: list[Tensor]) -> list[Tensor]:
        take, keep, value, show = (x + h).chunk(4, -1)
        memory = keep.sigmoid() * state[1] + take.sigmoid() * value.tanh()
        return [show.sigmoid() * memory.tanh(), memory]

    def gru(x: Tensor, h: Tensor, state: list[Tensor]) -> list[Tensor]:
        (reset, keep, value), (reset_h, keep_h, value_h) = x.chunk(3, -1), h.chunk(3, -1)
        new = (value + (reset + reset_h).sigmoid() * value_h).tanh()
        return [new.lerp(state[0], (keep + keep_h).sigmoid())]

    def plain(x: Tensor, h: Tensor, state: list[Tensor]) -> list[Tensor]:
        return [torch.relu(x + h) if module.nonlinearity == "relu" else torch.tanh(x + h)]

    return lstm if isinstance(module, LSTMS) else gru if isinstance(module, GRUS) else plain
