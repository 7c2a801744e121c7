"""A separate sample for every rank: curvature from the gradient of this rank, before gradients are averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from bayesadam.engine.collection import add_curvature, measurable
from bayesadam.engine.store import Slot, Store
from bayesadam.engine.weights import Weights
from bayesadam.sharding import average


class LocalSource:
    """Curvature from the rank's own sample and gradient, averaged over the ranks as the gradients are.

    Data parallelism averages ``p.grad`` during the backward pass. A curvature estimate from the gradient of one sample
    must be computed before, so hooks on the parameters see what each backward pass adds. Gradients and curvatures are
    then both averaged over the samples of all ranks, as in one process that draws as many.

    Args:
        store: Groups and state of the optimiser.
        weights: Samples and means in the weights.
        collected: Function that returns the number of samples of this rank so far.
    """

    differentiates = False
    hint = "with rank_samples it must come from a backward pass that begins after train() or inside a block"

    def __init__(self, store: Store, weights: Weights, collected: Callable[[], int]) -> None:
        self.store = store
        self.weights = weights
        self.collected = collected
        self._handles: list[Any] = []
        self._own: dict[Tensor, Tensor] = {}
        self._found: dict[Tensor, Tensor] = {}
        self._after_backward: Callable[[], None] | None = None
        self._queued = False

    @property
    def started(self) -> bool:
        """Part of the :class:`CurvatureSource` protocol."""
        return bool(self._handles)

    def start(self, after_backward: Callable[[], None] | None = None) -> None:
        """Part of the :class:`CurvatureSource` protocol."""
        self.discard()
        self.resume(after_backward)

    def resume(self, after_backward: Callable[[], None] | None = None) -> None:
        """Part of the :class:`CurvatureSource` protocol."""
        self.stop()
        self._after_backward = after_backward
        self.include([slot.parameter for slot in self.store.slots()])

    def include(self, parameters: Sequence[Tensor]) -> None:
        """Part of the :class:`CurvatureSource` protocol."""
        possible = [p for p in parameters if p.is_floating_point() and not p.is_inference()]
        self._handles += [_hook(parameter, self._see(parameter)) for parameter in possible]

    def stop(self) -> None:
        """Part of the :class:`CurvatureSource` protocol."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._queued = [], False

    def pause(self) -> None:
        """Part of the :class:`CurvatureSource` protocol."""
        self.stop()

    def discard(self) -> None:
        """Part of the :class:`CurvatureSource` protocol."""
        self._own, self._found = {}, {}

    def backward(self, loss: Tensor) -> None:
        """Part of the :class:`CurvatureSource` protocol."""
        loss.backward()  # type: ignore[no-untyped-call]

    def after_closure(self, loss: Any) -> Any:
        """Part of the :class:`CurvatureSource` protocol."""
        return loss

    def check_gradients(self) -> None:
        """Accept all gradients, since the user computes them and may change them."""

    def covers(self, parameter: Tensor) -> bool:
        """Whether a rule that uses noise has it for this parameter."""
        if not self.store.rule.needs_noise:
            return True
        return any(slot.parameter is parameter for slot in measurable(self.weights, self.store.slots()))

    def curvature(self, parameter: Tensor) -> Tensor | None:
        """Curvature of a parameter; the first call for a sample is collective, over all parameters with a gradient."""
        if not self._found and self._own:
            self._found = self._averaged(self.store.trained())
        return self._found.get(parameter)

    def gradient_factor(self) -> float:
        """1, since the loss is a mean."""
        return 1.0

    def _see(self, parameter: Tensor) -> Callable[[Tensor], None]:
        @torch.no_grad()
        def hook(grad: Tensor) -> None:
            earlier = None if parameter.grad is None else self._own.get(parameter)
            self._own[parameter] = grad.clone() if earlier is None else earlier.add_(grad)
            self._found = {}
            if self._after_backward is not None and not self._queued:
                self._queued = True
                Variable._execution_engine.queue_callback(self._queue_again)

        return hook

    def _queue_again(self) -> None:
        """Queue the work again, so that it runs after the averaging of the gradients by data parallelism."""
        self._queued = False
        if self._after_backward is not None:
            Variable._execution_engine.queue_callback(self._after_backward)

    @torch.no_grad()
    def _averaged(self, trained: Sequence[Slot]) -> dict[Tensor, Tensor]:
        slots = measurable(self.weights, trained)
        found: dict[Tensor, Tensor] = {s.parameter: torch.zeros_like(self.store.state_of(s)["mean"]) for s in slots}
        # A gradient that this rank does not have counts as zero, in the mean of the gradients as well.
        own = [self._own[p] if p in self._own else torch.zeros_like(p) for p in found]
        samples = list(zip(slots, own, found.values(), strict=True))
        add_curvature(self.weights, samples, self.collected(), 1.0, signed=False)
        average(list(found.values()))
        return {p: value for p, value in found.items() if p in self._own or value.any() or not self._is_used(p, value)}

    def _is_used(self, parameter: Tensor, curvature: Tensor) -> bool:
        """Whether a parameter has a gradient so large that its curvature, if a rank knew it, would not be zero."""
        return bool(self.store.dense_gradient(parameter).to(curvature.dtype).square().any())


def _hook(parameter: Any, function: Callable[[Tensor], None]) -> Any:
    """Add a hook; a frozen parameter, to which none can be added, keeps one when it is frozen again."""
    trainable = parameter.requires_grad
    try:
        return parameter.requires_grad_(True).register_hook(function)
    finally:
        parameter.requires_grad_(trainable)
