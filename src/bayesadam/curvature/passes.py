"""What the hooks keep: the parts of a model that are looked at, passes through it, and calls of the parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bayesadam.curvature.layers import Sink
from bayesadam.curvature.totals import Scratch, Total


@dataclass(eq=False)
class Slot:
    """One parameter, under all the names that it has.

    Attributes:
        name: Its first name in the model.
        owners: The modules that hold it, and its name there.
        uses: How many parts of the model have it; with several the gradients of an example must be added up first.
    """

    name: str
    total: Total
    owners: list[tuple[nn.Module, str]] = field(default_factory=list)
    uses: int = 0

    @property
    def parameter(self) -> nn.Parameter:
        """As it is now: sharding exchanges the objects."""
        module, name = self.owners[0]
        found: nn.Parameter = module._parameters[name]  # type: ignore[assignment]
        return found


class Method(Protocol):
    """How the squares of a part's parameters are computed from its calls."""

    def capture(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """At the forward pass: the outputs that the part is to return instead, which report to the call."""

    def squares(self, call: Call, sink: Sink) -> None:
        """At the backward pass: put the squares of all examples into the sink."""

    def gradients(self, call: Call, part: slice, names: Sequence[str], scratch: Scratch) -> dict[str, Tensor]:
        """Per-example gradients of some examples, ``(m, *shape)`` by name; may be overwritten."""

    def bytes_each(self, call: Call) -> int:
        """Memory that :meth:`gradients` takes for one example."""

    def merges(self, call: Call) -> bool:
        """Whether the squares depend on the squared gradient of the one output only, and linearly."""


@dataclass(eq=False)
class Unit:
    """A part of the model whose calls are looked at: a layer, or a module with all that is in it.

    Attributes:
        name: In the model; for messages.
        slots: By the parameter's name in this module.
    """

    name: str
    module: nn.Module
    method: Method
    slots: dict[str, Slot]

    def __str__(self) -> str:
        return f"module {self.name!r} ({type(self.module).__name__})" if self.name else type(self.module).__name__


@dataclass(eq=False)
class Pass:
    """One forward pass through the whole model.

    Attributes:
        size: Number of examples; None if the model was given no tensor.
        generation: Of the start that it belongs to.
        storages: Addresses of the model's inputs.
        calls: How often each unit was called.
        backwards: How many backward passes through it there will be.
        jumps: From the graph node of a call's outputs to those of its inputs.
        counted: Whether a backward pass has come here, and its examples are counted.
        pending: Calls whose gradients must be added up before they are squared, by parameter.
    """

    size: int | None
    generation: int
    storages: frozenset[int] = frozenset()
    calls: dict[Unit, int] = field(default_factory=dict)
    backwards: int = 1
    jumps: dict[Any, list[Any]] = field(default_factory=dict)
    counted: bool = False
    pending: dict[Slot, list[tuple[str, Call]]] = field(default_factory=dict)


@dataclass(eq=False)
class Call:
    """One call of a unit.

    Attributes:
        names: Of the parameters that were trainable.
        context: What the method wants to remember.
        inputs: At the backward pass: what the method saved.
        grads: At the backward pass: the gradients of the outputs.
        received: How many backward passes came here.
        merged: Sum of the squared gradients of the output so far, where those of several backward passes are added up.
        kept: Whether it is needed until the end of the backward pass.
        collector: Whom to tell.
    """

    unit: Unit
    during: Pass
    names: tuple[str, ...]
    collector: Callable[[], Collector | None]
    context: Any = None
    inputs: tuple[Tensor, ...] = ()
    grads: tuple[Tensor | None, ...] = ()
    received: int = 0
    merged: Tensor | None = None
    kept: bool = False

    @property
    def size(self) -> int:
        """Number of examples."""
        assert self.during.size is not None
        return self.during.size

    def receive(self, inputs: tuple[Tensor, ...], grads: tuple[Tensor | None, ...], *, sums: bool) -> dict[str, Tensor]:
        """The backward pass came here.

        Args:
            inputs: What was saved.
            grads: Of the outputs.
            sums: Whether the sums over the examples of the parameters' gradients are of use.

        Returns:
            Those sums, by name, of the parameters for which they were computed.
        """
        collector = self.collector()
        if collector is None or collector.generation != self.during.generation:
            return {}
        if self.received == self.during.backwards:
            raise RuntimeError(
                f"one forward pass must be backwarded once while per-example gradients are squared, got a second "
                f"backward pass through {self.unit}: add the losses first"
            )
        self.received += 1
        self.inputs, self.grads = inputs, grads
        try:
            return collector.take(self, sums=sums)
        finally:
            if not self.kept:
                self.inputs, self.grads = (), ()


class Collector(Protocol):
    """Whom calls report to."""

    generation: int
    positions: dict[str, bool]

    def take(self, call: Call, *, sums: bool) -> dict[str, Tensor]:
        """Square the call's per-example gradients; returns their sums if asked for and computed."""


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


def nodes_of(tensors: Iterator[Tensor]) -> list[Any]:
    """The graph nodes that made the tensors."""
    return [t.grad_fn for t in tensors if t.grad_fn is not None]


def no_batch(unit: Unit, size: int | None, shape: Sequence[int]) -> RuntimeError:
    """What to tell about an input that does not start with the examples."""
    return RuntimeError(
        f"the first axis of the input of {unit} must be the {size} examples of the minibatch that the model was "
        f"called with, got shape {tuple(shape)}"
    )


def in_functorch() -> bool:
    """Whether a function transform (``torch.func``) is running."""
    return bool(torch._C._are_functorch_transforms_active())
