"""The hooks on a model that tell a collector of its forward passes.

They have weak references to the collector, since a model's hooks must not keep the model alive; in a copy or a pickle
of the model they do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from bayesadam.curvature.passes import Follower, ForwardPass


class Hook:
    """A forward hook that calls a method of a collector, unless this no longer exists or is itself calling a module.

    Args:
        collector: Weak reference to the collector.
        method: The method, which gets ``about`` and then what torch gives the hook.
        about: What the hook is for.
    """

    def __init__(
        self,
        collector: Callable[[], Follower | None] = lambda: None,
        method: Callable[..., Any] | None = None,
        *about: Any,
    ) -> None:
        self.reference, self.method, self.about = collector, method, about

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def __call__(self, module: nn.Module, *given: Any) -> Any:
        """Called by torch."""
        collector = self.reference()
        if collector is None or collector.paused or self.method is None:
            return None
        return self.method(collector, *self.about, module, *given)


class Counts:
    """Hook for a backward pass that reaches the outputs of the model."""

    def __init__(self, collector: Callable[[], Follower | None], during: ForwardPass) -> None:
        self.reference = collector
        self.during = during

    def __call__(self, grad: Tensor) -> None:
        """Called by torch."""
        collector = self.reference()
        if collector is not None and collector.follows(self.during):
            collector.arrive(self.during)
