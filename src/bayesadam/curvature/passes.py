"""Records kept by the hooks: the observed parts of a model, passes through it, and calls of the parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from bayesadam.curvature.layers import Sink
from bayesadam.curvature.totals import Scratch, Total


@dataclass(eq=False)
class Slot:
    """One parameter, with all of its names.

    Attributes:
        name: First name in the model.
        owners: Modules that hold it, with its name there.
        uses: Number of parts of the model that have it; with several, the gradients of an example must be added first.
    """

    name: str
    total: Total
    owners: list[tuple[nn.Module, str]] = field(default_factory=list)
    uses: int = 0

    @property
    def parameter(self) -> nn.Parameter:
        """The current parameter, since sharding replaces the objects."""
        module, name = self.owners[0]
        parameter: nn.Parameter = module._parameters[name]  # type: ignore[assignment]
        return parameter


class Method(Protocol):
    """How the squares of a part's parameters are computed from its calls."""

    def capture(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """At the forward pass, return outputs that replace the part's own and report to the call."""

    def squares(self, call: Call, sink: Sink) -> None:
        """At the backward pass, add the squares of all examples to the sink."""

    def gradients(self, call: Call, part: slice, names: Sequence[str], scratch: Scratch) -> dict[str, Tensor]:
        """Per-example gradients of some examples, ``(m, *shape)`` by name; may be overwritten."""

    def bytes_each(self, call: Call) -> int:
        """Memory that :meth:`gradients` takes for one example."""

    def merges(self, call: Call) -> bool:
        """Whether the squares depend on the squared gradient of the one output only, and linearly."""


@dataclass(eq=False)
class Unit:
    """A part of the model whose calls are observed: a layer, or a module with all that it contains.

    Attributes:
        name: Name in the model, for messages.
        slots: Slots by the parameter's name in this module.
    """

    name: str
    module: nn.Module
    method: Method
    slots: dict[str, Slot]

    def __str__(self) -> str:
        return f"module {self.name!r} ({type(self.module).__name__})" if self.name else type(self.module).__name__


@dataclass(eq=False)
class ForwardPass:
    """One forward pass through the whole model.

    Attributes:
        size: Number of examples; None if the model was called without tensors.
        generation: Number of the start that it belongs to.
        storages: Addresses of the model's inputs.
        calls: Number of calls of each unit.
        backwards: Number of backward passes through it that will follow.
        announced: Whether these were announced, and compute no gradients of parameters.
        jumps: Map from the graph node of a call's outputs to those of its inputs.
        insides: Calls of modules that have children: the module, and the nodes of its outputs and inputs.
        counted: Whether a backward pass has reached it, and its examples are counted.
        pending: Calls whose gradients must be added before they are squared, by parameter.
    """

    size: int | None
    generation: int
    storages: frozenset[int] = frozenset()
    calls: dict[Unit, int] = field(default_factory=dict)
    backwards: int = 1
    announced: bool = False
    jumps: dict[Any, list[Any]] = field(default_factory=dict)
    insides: list[tuple[Unit, list[Any], list[Any]]] = field(default_factory=list)
    counted: bool = False
    pending: dict[Slot, list[tuple[str, Call]]] = field(default_factory=dict)


@dataclass(eq=False)
class Call:
    """One call of a unit.

    Attributes:
        names: Names of the parameters that were trainable.
        context: Data of the method.
        inputs: Tensors that the method saved, at the backward pass.
        grads: Gradients of the outputs, at the backward pass.
        received: Number of backward passes that have reached it.
        merged: Sum of the squared gradients of the output so far, if those of several backward passes are added.
        is_pending: Whether it is needed until the end of the backward pass.
        collector: The collector that it reports to.
    """

    unit: Unit
    during: ForwardPass
    names: tuple[str, ...]
    collector: Callable[[], Follower | None]
    context: Any = None
    inputs: tuple[Tensor, ...] = ()
    grads: tuple[Tensor | None, ...] = ()
    received: int = 0
    merged: Tensor | None = None
    is_pending: bool = False

    @property
    def size(self) -> int:
        """Number of examples."""
        assert self.during.size is not None
        return self.during.size

    def receive(self, inputs: tuple[Tensor, ...], grads: tuple[Tensor | None, ...], *, sums: bool) -> dict[str, Tensor]:
        """Record that a backward pass has reached this call.

        Args:
            inputs: Tensors that were saved.
            grads: Gradients of the outputs.
            sums: Whether the sums over the examples of the parameters' gradients are needed.

        Returns:
            Those sums, by name, of the parameters for which they were computed.
        """
        collector = self.collector()
        if collector is None or collector.generation != self.during.generation:
            return {}
        if not collector.follows(self.during):
            return {}
        if self.received == self.during.backwards:
            raise RuntimeError(
                f"backward() must be called once for each forward pass while per-example gradients are squared, got a "
                f"second backward pass through {self.unit}: add the losses before it"
            )
        self.received += 1
        self.inputs, self.grads = inputs, grads
        try:
            return collector.take(self, sums=sums)
        finally:
            if not self.is_pending:
                self.inputs, self.grads = (), ()


class Follower(Protocol):
    """What calls and hooks need of the collector that they report to."""

    generation: int
    paused: bool
    positions: dict[str, bool]

    def follows(self, during: ForwardPass) -> bool:
        """Whether the backward pass that is running through a forward pass is one for the gradients of parameters."""

    def arrive(self, during: ForwardPass) -> None:
        """Record that a backward pass has reached a forward pass."""

    def take(self, call: Call, *, sums: bool) -> dict[str, Tensor]:
        """Square the call's per-example gradients; return their sums by name, if they are requested."""


def nodes_of(tensors: Iterator[Tensor]) -> list[Any]:
    """The graph nodes that made the tensors, or that accumulate the gradient of a leaf."""
    return [get_gradient_edge(t).node for t in tensors if t.requires_grad]


def computes_gradients(parameters: Iterable[Tensor]) -> bool:
    """Whether the backward pass that is running computes the gradient of a parameter.

    :func:`torch.autograd.grad` for other tensors, as for a saliency map or an attack, does not.
    """
    for parameter in parameters:
        try:
            if parameter.requires_grad and torch._C._will_engine_execute_node(get_gradient_edge(parameter).node):
                return True
        except RuntimeError:  # torch.autograd.grad is asked for the gradient of the parameter itself
            return True
    return False


def no_batch(unit: Unit, size: int | None, shape: Sequence[int]) -> RuntimeError:
    """Make the error for an input whose first axis does not have the examples."""
    return RuntimeError(
        f"the first axis of the input of {unit} must be the {size} examples of the minibatch that the model was "
        f"called with, got shape {tuple(shape)}"
    )


def in_functorch() -> bool:
    """Whether a function transform (``torch.func``) is running."""
    return bool(torch._C._are_functorch_transforms_active())
