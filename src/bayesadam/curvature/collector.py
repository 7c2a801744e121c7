"""Following a model's forward and backward passes, and collecting squared gradients."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from bayesadam.curvature.hooks import Counts, Hook
from bayesadam.curvature.layers import Form, Sink
from bayesadam.curvature.norms import uses_batch_statistics
from bayesadam.curvature.passes import (
    Call,
    ForwardPass,
    Method,
    Slot,
    Unit,
    computes_gradients,
    in_functorch,
    nodes_of,
)
from bayesadam.curvature.totals import CHUNK, Scratch, Total, chunks
from bayesadam.curvature.units import units_of
from bayesadam.functional.curvature import wide
from bayesadam.modules.calls import tensors_in
from bayesadam.modules.recomputation import in_backward
from bayesadam.native.device import working_set


class Collector:
    """Collects squared gradients while its hooks are on; see :class:`PerExampleSquares`.

    Args:
        root: The model.
        sums: Whether the loss is a sum over the examples.
        closed: Function that returns the method of a layer with a closed form.

    Attributes:
        units: Parts of the model since the last start.
        num_examples: Number of examples in the backward passes since the start.
        generation: How often it was started; calls from before the last start are ignored.
        paused: Whether hooks are ignored, because a module is called again.
        resumable: Whether there was a :meth:`pause`, without a :meth:`resume` or a start since.
        positions: Embeddings by name for which it is known whether their indices are positions.
    """

    def __init__(self, root: nn.Module, *, sums: bool, closed: Callable[[Form, nn.Module], Method]) -> None:
        self.root = root
        self.closed = closed
        self.sums = sums
        self.num_examples = 0
        self.generation = 0
        self.paused = False
        self.resumable = False
        self.positions: dict[str, bool] = {}
        self.after_backward: Callable[[], None] | None = None
        self.slots: list[Slot] = []
        self.units: list[Unit] = []
        self._totals: dict[str, Total] = {}
        self._scratch = Scratch()
        self._handles: list[RemovableHandle] = []
        self._pass: ForwardPass | None = None
        self._inside = False
        self._checked: set[Any] = set()
        self._tasks: list[int] = []
        self._judged = -1, False
        self._touched: list[ForwardPass] = []

    # Methods that PerExampleSquares calls

    @property
    def started(self) -> bool:
        """Whether the hooks are on."""
        return bool(self._handles)

    def start(self) -> None:
        """Examine the model, discard all squares, and add the hooks.

        Raises:
            RuntimeError: Another collector's hooks are on the model; nothing has changed.
        """
        parts = self._parts()
        self.stop()
        self.discard()
        self.generation += 1
        self._pass = None
        self._follow(*parts)

    def pause(self) -> None:
        """Remove the hooks temporarily."""
        self.stop()
        self.resumable = True

    def resume(self) -> None:
        """Examine the model and add the hooks; errors are those of :meth:`start`."""
        self._follow(*self._parts())

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def discard(self) -> None:
        """Discard squares and the number of examples."""
        self.num_examples = 0
        for total in self._totals.values():
            total.empty = True
        if not in_backward():
            self.paused = False  # an interrupt may have left it set
            self._end_of_backward()

    @property
    def last_size(self) -> int | None:
        """Number of examples of the last forward pass, if there was one."""
        return None if self._pass is None else self._pass.size

    def read(self, slot: Slot) -> Tensor | None:
        """Mean of squares of one parameter."""
        return None if slot.total.empty else slot.total.read(self._alpha)

    @property
    def _alpha(self) -> float:
        """Factor of the sum of squares; see :class:`PerExampleSquares`."""
        return 1.0 / max(1, self.num_examples) if self.sums else float(self.num_examples)

    def expect(self, output: Tensor, backwards: int) -> list[GradientEdge]:
        """Announce the number of backward passes through the last forward pass.

        Returns:
            Places in the graph whose gradients make a backward pass reach all calls. They are not parameters, whose
            gradients would cost as much as the pass.
        """
        assert self._pass is not None
        self._pass.backwards, self._pass.announced = backwards, True
        edges = []
        queue = nodes_of(iter([output]))
        seen = set(queue)
        while queue:
            node = queue.pop()
            following = [(f, number) for f, number in node.next_functions if f is not None]
            if isinstance(getattr(node, "call", None), Call):
                edges.append(GradientEdge(*following[0]))
            queue.extend(f for f, _ in following if f not in seen)
            seen.update(f for f, _ in following)
        return edges

    # Methods that hooks call

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a forward pass through the model."""
        if in_functorch():
            return
        inputs = list(tensors_in((args, kwargs)))
        if not in_backward():
            self._end_of_backward()
        size = len(inputs[0]) if inputs and inputs[0].ndim > 0 else None
        storages = frozenset(t.untyped_storage().data_ptr() for t in inputs)
        self._pass = ForwardPass(size, self.generation, storages)
        self._inside = True

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """End a forward pass, possibly after an exception."""
        if in_functorch():
            return
        during, self._inside = self._pass, False
        if during is None or not torch.is_grad_enabled():
            return
        outputs = [tensor for tensor in tensors_in(output) if tensor.grad_fn is not None]
        if outputs:
            self._check_uses(during, outputs)
        for tensor in outputs:
            tensor.register_hook(Counts(weakref.ref(self), during))  # type: ignore[no-untyped-call]

    def refuse(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """Refuse batch normalisation over the minibatch."""
        if torch.is_grad_enabled() and output.requires_grad and uses_batch_statistics(module):
            raise RuntimeError(
                f"module {name!r} must not normalise over the minibatch while per-example gradients are squared, "
                f"got {type(module).__name__} in training mode (use GroupNorm or LayerNorm, or its eval mode)"
            )

    def called(
        self,
        number: int,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Any:
        """Record the call of a unit, by its number; return the outputs that replace its own, or None."""
        if in_functorch():
            return None
        unit = self.units[number]
        during = self._pass
        if during is not None and not in_backward():
            during.calls[unit] = during.calls.get(unit, 0) + 1
        if not torch.is_grad_enabled():
            return None
        if not any(t.requires_grad for t in tensors_in(output)):
            return None
        names = tuple(name for name, slot in unit.slots.items() if slot.parameter.requires_grad)
        if not names:
            return None
        if during is None or not (self._inside or in_backward()):
            raise RuntimeError(
                f"{unit} must be called by the model's forward while per-example gradients are squared, got a call "
                "from outside, where the examples are not known (also one in which a checkpointed part runs again in a "
                "second backward pass, or in one through several forward passes)"
            )
        sources = nodes_of(tensors_in((args, kwargs)))
        call = Call(unit, during, names, weakref.ref(self))
        if self._inside and unit.module._modules:
            during.insides.append((unit, nodes_of(tensors_in(output)), sources))
        self._pass = None  # an exception has ended the pass
        output = unit.method.capture(call, args, kwargs, output)
        self._pass = during
        if self._inside:
            during.jumps.update((node, sources) for node in nodes_of(tensors_in(output)))
        return output

    def follows(self, during: ForwardPass) -> bool:
        """Whether the backward pass that is running through a forward pass is one for the gradients of parameters."""
        task = torch._C._current_graph_task_id()
        if task != self._judged[0]:
            self._judged = task, during.announced or computes_gradients(slot.parameter for slot in self.slots)
        return self._judged[1]

    def arrive(self, during: ForwardPass) -> None:
        """Record that a backward pass has reached a forward pass."""
        task = torch._C._current_graph_task_id()
        if task not in self._tasks:
            self._tasks.append(task)
            Variable._execution_engine.queue_callback(partial(_leave_backward, weakref.ref(self), task))
        if during.generation == self.generation and not during.counted:
            during.counted = True
            self.num_examples += during.size or 0

    def take(self, call: Call, *, sums: bool) -> dict[str, Tensor]:
        """Square the call's per-example gradients, or keep the call if gradients of other calls must be added first.

        Returns:
            The sums of the gradients by name, if they are requested and were computed.
        """
        during = call.during
        self.arrive(during)
        summed: dict[str, Tensor] | None = {} if sums else None
        slots = {name: call.unit.slots[name] for name in call.names}
        if during.calls.get(call.unit, 0) > 1:
            now, later = {}, slots
        else:
            now = {name: slot.total for name, slot in slots.items() if slot.uses == 1}
            later = {name: slot for name, slot in slots.items() if slot.uses > 1}
        if later:
            call.is_pending = True
            for name, slot in later.items():
                during.pending.setdefault(slot, []).append((name, call))
            if during not in self._touched:
                self._touched.append(during)
        if now and self._complete(call):
            self._paused(call.unit.method.squares, call, Sink(now, self._alpha, self._scratch, summed))
        return summed or {}

    def leave_backward(self, task: int) -> None:
        """End a backward pass; a nested one (reentrant checkpointing) leaves the rest to the outermost."""
        if not self._tasks or task != self._tasks[0]:
            return
        touched = self._touched
        self._end_of_backward()
        with torch.no_grad():
            for during in touched:
                for slot, calls in during.pending.items():
                    self._paused(self._square_sums, slot, calls)
                during.pending.clear()
        if self.after_backward is not None:
            # It queues itself again, so that it runs after the averaging of gradients that data parallelism has queued.
            Variable._execution_engine.queue_callback(self.after_backward)

    # Internal methods

    def _parts(self) -> tuple[list[Unit], list[Slot]]:
        """The parts of the model; RuntimeError if another collector's hooks are on one."""
        units, slots = units_of(self.root, self._totals, self.closed)
        if self._has_others(units):
            # An optimiser without references may still wait for the garbage collector, with its hooks on the model.
            gc.collect()
            if self._has_others(units):
                raise RuntimeError(
                    "a model must have at most one started PerExampleSquares at a time, got a second one: use one "
                    "optimizer with param groups, or stop the other first (eval() of its optimizer)"
                )
        return units, slots

    def _follow(self, units: list[Unit], slots: list[Slot]) -> None:
        """Put the hooks on."""
        self.resumable = False
        self.units, self.slots = units, slots
        reference = weakref.ref(self)
        for number, unit in enumerate(units):
            hook = Hook(reference, Collector.called, number)
            self._handles.append(unit.module.register_forward_hook(hook, prepend=True, with_kwargs=True))
        for name, module in self.root.named_modules():
            if isinstance(module, _BatchNorm):
                hook = Hook(reference, Collector.refuse, name)
                self._handles.append(module.register_forward_hook(hook))
        self._handles.append(self.root.register_forward_pre_hook(Hook(reference, Collector.enter), with_kwargs=True))
        self._handles.append(self.root.register_forward_hook(Hook(reference, Collector.leave), always_call=True))

    def _has_others(self, units: list[Unit]) -> bool:
        """Whether another collector's hooks are on one of these parts."""
        hooks = (hook for unit in units for hook in unit.module._forward_hooks.values())
        return any(isinstance(hook, Hook) and hook.reference() not in (None, self) for hook in hooks)

    def _complete(self, call: Call) -> bool:
        """Whether to square now; merged gradients are squared at the last of several backward passes."""
        if call.during.backwards == 1 or call.is_pending or not call.unit.method.merges(call):
            return True
        (grad,) = call.grads
        assert grad is not None
        squared = grad.to(wide(grad.dtype)).square()
        call.merged = squared if call.merged is None else call.merged.add_(squared)
        call.grads = (call.merged.sqrt(),)
        return call.received == call.during.backwards

    def _square_sums(self, slot: Slot, calls: list[tuple[str, Call]]) -> None:
        """Square the sum of several calls' contributions to the gradient of one parameter."""
        bytes_each = sum(call.unit.method.bytes_each(call) for _, call in calls)
        for part in chunks(calls[0][1].size, bytes_each, working_set(slot.parameter.device, CHUNK)):
            total: Tensor | None = None
            for name, call in calls:
                gradients = call.unit.method.gradients(call, part, (name,), self._scratch)[name]
                total = gradients.clone() if total is None else total.add_(gradients)
            assert total is not None
            Sink({"": slot.total}, self._alpha, self._scratch).add("", total)

    def _paused(self, function: Callable[..., None], *args: Any) -> None:
        self.paused = True
        try:
            function(*args)
        finally:
            self.paused = False

    def _end_of_backward(self) -> None:
        self._tasks, self._touched = [], []

    def _check_uses(self, during: ForwardPass, outputs: list[Tensor]) -> None:
        """Check that the model does not use parameters outside the calls of their modules, where no hook sees it.

        This is checked once for every set of calls, by following the graph from the outputs past the calls, and from
        those of each call of a module with children to its inputs.
        """
        jumps, during.jumps = during.jumps, {}
        insides, during.insides = during.insides, []
        signature = (frozenset((unit.name, count) for unit, count in during.calls.items()), self.root.training)
        if signature in self._checked:
            return
        self._check_path(self.root, nodes_of(iter(outputs)), [], jumps, ())
        for unit, ends, starts in insides:
            self._check_path(unit.module, ends, starts, jumps, unit.slots.values())
        self._checked.add(signature)

    def _check_path(
        self,
        module: nn.Module,
        ends: list[Any],
        starts: list[Any],
        jumps: Mapping[Any, list[Any]],
        exempt: Iterable[Slot],
    ) -> None:
        """Check that no parameters but those of ``exempt`` are used between the inputs and outputs of its call."""
        owned = set(exempt)
        parameters = {slot.parameter: slot for slot in self.slots if slot not in owned}
        seen = {*ends, *starts}
        queue = [node for node in ends if node not in starts]
        while queue:
            node = queue.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None and leaf in parameters:
                raise RuntimeError(
                    f"parameter {parameters[leaf].name} must be used only by calls of its module while per-example "
                    f"gradients are squared, got a use of the bare tensor in the forward of {type(module).__name__}"
                )
            following = jumps[node] if node in jumps else [f for f, _ in node.next_functions if f is not None]
            queue.extend(f for f in following if f not in seen)
            seen.update(following)


def _leave_backward(reference: Callable[[], Collector | None], task: int) -> None:
    if (collector := reference()) is not None:
        collector.leave_backward(task)
