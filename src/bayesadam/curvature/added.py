"""Parameters that a module only adds to its tensors, or repeats, for all examples alike, such as learned positions.

The gradients of the examples are then in the gradient of the result, and the module is not called again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from bayesadam.curvature.layers import Sink
from bayesadam.curvature.passes import Call, nodes_of
from bayesadam.curvature.totals import Scratch, chunks
from bayesadam.functional.autocast import without_autocast
from bayesadam.functional.curvature import wide

_VIEWS = {
    *("AliasBackward0", "PermuteBackward0", "SelectBackward0", "SliceBackward0", "SqueezeBackward1"),
    *("ToCopyBackward0", "TransposeBackward0", "UnsqueezeBackward0", "ViewBackward0"),
}
"""Nodes that may be between a parameter and the addition; they save no tensors, so that they can be run at any time."""


@dataclass(eq=False)
class Use:
    """One use of a parameter in the graph of a forward pass.

    Attributes:
        name: Name of the parameter in its module.
        view: Place in the graph of the view of the parameter that is added or repeated.
        leaf: Place of the parameter.
        shape: Shape of the view.
    """

    name: str
    view: GradientEdge
    leaf: GradientEdge
    shape: Sequence[int]


def uses_of(
    parameters: Mapping[nn.Parameter, str], outputs: Iterable[Tensor], sources: Iterable[Any], size: int | None
) -> list[tuple[Any, Use]] | None:
    """The uses of parameters between some outputs and the nodes of their inputs, if all are additions or repetitions.

    Args:
        parameters: Names of the parameters.
        outputs: The outputs.
        sources: The nodes of the inputs, where the search ends.
        size: Number of examples.

    Returns:
        The uses, each with the node of its result, which has the axis of the examples. None if there is another use, or
        a parameter has none.
    """
    queue = nodes_of(iter(outputs))
    seen = {*queue, *sources}
    uses = []
    while queue:
        node = queue.pop()
        for following, number in node.next_functions:
            if following is None:
                continue
            leaf = _behind_views(following)
            parameter: Any = getattr(leaf, "variable", None)
            if parameter in parameters:
                shape = following._input_metadata[number].shape
                if not _is_for_all_examples(node, shape, size):
                    return None
                edges = GradientEdge(following, number), GradientEdge(leaf, 0)
                uses.append((node, Use(parameters[parameter], *edges, shape)))
            elif following not in seen:
                seen.add(following)
                queue.append(following)
    return uses if {use.name for _, use in uses} == set(parameters.values()) else None


def observe(call: Call, uses: Sequence[tuple[Any, Use]]) -> None:
    """Make every use report its gradient as a call of its own; ``call`` is that of the module."""
    calls = call.during.calls
    calls[call.unit] += len(uses) - len(call.names)  # gradients of several uses must be added
    for node, use in uses:  # the call must not know the node, which would then never be freed
        own = replace(call, names=(use.name,), method=Added(), context=use)
        node.metadata["call"] = own
        node.register_prehook(_reporting(own))


class Added:
    """The method of one use of a parameter."""

    def capture(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Part of the :class:`Method` protocol; :func:`observe` makes the calls."""
        raise NotImplementedError

    def squares(self, call: Call, sink: Sink) -> None:
        """Part of the :class:`Method` protocol."""
        (name,) = call.names
        for part in chunks(call.size, self.bytes_each(call)):
            sink.add(name, self.gradients(call, part, call.names, sink.scratch)[name])

    def bytes_each(self, call: Call) -> int:
        """Part of the :class:`Method` protocol."""
        (name,) = call.names
        return 4 * call.unit.module.get_parameter(name).numel()

    def merges(self, call: Call) -> bool:
        """Part of the :class:`Method` protocol."""
        return False

    def gradients(self, call: Call, part: slice, names: Sequence[str], scratch: Scratch) -> dict[str, Tensor]:
        """Part of the :class:`Method` protocol."""
        use: Use = call.context
        (grad,) = call.grads
        assert grad is not None
        grad = grad[part].to(wide(grad.dtype), copy=True)  # squares overwrite it
        inner = [1] * (grad.ndim - 1 - len(use.shape)) + list(use.shape)[-grad.ndim + 1 :]  # of one example
        found = grad.sum_to_size(len(grad), *inner).view(len(grad), *use.shape)
        if use.view.node is not use.leaf.node:
            edges = [use.view], [use.leaf]
            (found,) = torch.autograd.grad(*edges, [found], retain_graph=True, is_grads_batched=True)
        return {name: found.to(wide(found.dtype)).contiguous() for name in names}


def _behind_views(node: Any) -> Any:
    """The node behind the views that begin with a node."""
    while node is not None and node.name() in _VIEWS:
        node = node.next_functions[0][0]
    return node


def _is_for_all_examples(node: Any, shape: Sequence[int], size: int | None) -> bool:
    """Whether a node adds a tensor of this shape to one with the axis of the examples, or repeats it for them."""
    if node.name() == "AddBackward0":
        plain = node._saved_alpha == 1
    else:
        plain = node.name() == "ExpandBackward0"
    result = node._input_metadata[0].shape
    return plain and result[:1] == [size] and (len(shape) < len(result) or shape[0] == 1)


def _reporting(call: Call) -> Any:
    """A hook before a node of the backward pass, which gives its gradient to the call."""

    def hook(grads: tuple[Tensor | None, ...]) -> None:
        if grads[0] is not None:
            with without_autocast(grads):
                call.receive((), (grads[0].detach(),), sums=False)

    return hook
