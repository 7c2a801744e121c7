"""The hooks on a model, which tell a collector of its forward passes.

They refer weakly to the collector, as a model's hooks must not keep the model; and a copy or a pickle of the model
carries hooks that do nothing.
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
    """A reference to nothing."""


class Hook:
    """Knows its collector, until that is gone."""

    def __init__(self, collector: Callable[[], Collector | None] = nothing) -> None:
        self.reference = collector

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    @property
    def collector(self) -> Collector | None:
        """Unless it is gone, or calls a module itself."""
        found = self.reference()
        return None if found is None or found.paused else found


class Called(Hook):
    """After a call of a unit: may exchange its outputs."""

    def __init__(
        self,
        collector: Callable[[], Collector | None] = nothing,
        unit: Callable[[], Unit | None] = nothing,
    ) -> None:
        super().__init__(collector)
        self.unit = unit

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """As torch calls it."""
        collector, unit = self.collector, self.unit()
        if collector is None or unit is None:
            return None
        return collector.called(unit, args, kwargs, output)


class Refused(Hook):
    """After a call of batch normalisation."""

    def __init__(self, collector: Callable[[], Collector | None] = nothing, name: str = "") -> None:
        super().__init__(collector)
        self.name = name

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """As torch calls it."""
        if self.collector is None or not torch.is_grad_enabled() or not output.requires_grad:
            return
        if uses_batch_statistics(module):
            raise RuntimeError(
                f"module {self.name!r} must not normalise over the minibatch while per-example gradients are squared, "
                f"got {type(module).__name__} in training mode (use GroupNorm or LayerNorm, or its eval mode)"
            )


class Entered(Hook):
    """Before a call of the model."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """As torch calls it."""
        if (collector := self.collector) is not None:
            collector.enter(args, kwargs)


class Left(Hook):
    """After a call of the model, also one that failed."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """As torch calls it."""
        if (collector := self.collector) is not None:
            collector.leave(output)


class Counts:
    """When the backward pass comes to the outputs of the model."""

    def __init__(self, collector: Callable[[], Collector | None], during: Pass) -> None:
        self.reference = collector
        self.during = during

    def __call__(self, grad: Tensor) -> None:
        """As torch calls it."""
        if (collector := self.reference()) is not None:
            collector.arrive(self.during)
