"""The hooks on a model that tell a collector of its forward passes.

They have weak references to the collector, since a model's hooks must not keep the model alive; in a copy or a pickle
of the model they do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesadam.curvature.norms import uses_batch_statistics
from bayesadam.curvature.passes import Pass, Unit

if TYPE_CHECKING:
    from bayesadam.curvature.collector import Collector


def nothing() -> None:
    """A weak reference whose object is gone."""


class Hook:
    """A hook with a weak reference to its collector."""

    def __init__(self, collector: Callable[[], Collector | None] = nothing) -> None:
        self.reference = collector

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    @property
    def collector(self) -> Collector | None:
        """The collector, or None if it no longer exists or is itself calling a module."""
        found = self.reference()
        return None if found is None or found.paused else found


class Called(Hook):
    """Hook after a call of a unit, which may replace its outputs."""

    def __init__(
        self,
        collector: Callable[[], Collector | None] = nothing,
        unit: Callable[[], Unit | None] = nothing,
    ) -> None:
        super().__init__(collector)
        self.unit = unit

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Called by torch."""
        collector, unit = self.collector, self.unit()
        if collector is None or unit is None:
            return None
        return collector.called(unit, args, kwargs, output)


class Refused(Hook):
    """Hook after a call of batch normalisation, which is refused."""

    def __init__(self, collector: Callable[[], Collector | None] = nothing, name: str = "") -> None:
        super().__init__(collector)
        self.name = name

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """Called by torch."""
        if self.collector is None or not torch.is_grad_enabled() or not output.requires_grad:
            return
        if uses_batch_statistics(module):
            raise RuntimeError(
                f"module {self.name!r} must not normalise over the minibatch while per-example gradients are squared, "
                f"got {type(module).__name__} in training mode (use GroupNorm or LayerNorm, or its eval mode)"
            )


class Entered(Hook):
    """Hook before a call of the model."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called by torch."""
        if (collector := self.collector) is not None:
            collector.enter(args, kwargs)


class Left(Hook):
    """Hook after a call of the model, also one that failed."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Called by torch."""
        if (collector := self.collector) is not None:
            collector.leave(output)


class Counts:
    """Hook for a backward pass that reaches the outputs of the model."""

    def __init__(self, collector: Callable[[], Collector | None], during: Pass) -> None:
        self.reference = collector
        self.during = during

    def __call__(self, grad: Tensor) -> None:
        """Called by torch."""
        if (collector := self.reference()) is not None:
            collector.arrive(self.during)
