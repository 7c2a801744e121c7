"""Where curvature comes from that a rule cannot compute from gradient and noise: the module, or second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.curvature import PerExampleSquares
from bayesadam.engine.store import Store
from bayesadam.functional import hessian


class CurvatureSource(Protocol):
    """Transient: it collects between the drawing of a sample and its end.

    Attributes:
        differentiates: The loss must not be backwarded by the user, but handed to :meth:`backward`.
        hint: What to do about a gradient without a curvature.
    """

    differentiates: bool
    hint: str

    @property
    def started(self) -> bool:
        """Whether it collects."""

    def start(self, after_backward: Callable[[], None] | None = None) -> None:
        """A sample is in the weights: begin with nothing, and call ``after_backward`` when gradients are complete."""

    def stop(self) -> None:
        """The weights hold the mean again."""

    def pause(self) -> None:
        """The same, but gradients may stay: what was collected with them does."""

    def resume(self, after_backward: Callable[[], None]) -> None:
        """Go on from :meth:`pause`; if there was none since the last start, start."""

    def discard(self) -> None:
        """Forget what was collected."""

    def backward(self, loss: Tensor) -> None:
        """Add a mean loss's gradients to ``p.grad``, and collect its curvature."""

    def after_closure(self, loss: Any) -> Any:
        """Deal with what a closure returned; returns what the user gets."""

    def check_gradients(self) -> None:
        """At the end of a block: raise if its gradients are not those that the curvature goes with."""

    def covers(self, parameter: Tensor) -> bool:
        """Whether a parameter's curvature can be known."""

    def curvature(self, parameter: Tensor) -> Tensor | None:
        """What was collected for a parameter, of its full shape, on the scale of ``p.grad``."""

    def gradient_factor(self) -> float:
        """By which ``p.grad`` must be multiplied to be the gradient of the mean loss."""


class ExampleSource:
    """Squared per-example gradients, which hooks collect during the user's own backward pass."""

    differentiates = False
    hint = "it must come from a backward pass through the model that PerExampleSquares was given"

    def __init__(self, squares: PerExampleSquares) -> None:
        self.squares = squares

    @property
    def started(self) -> bool:
        """See the protocol."""
        return self.squares.started

    def start(self, after_backward: Callable[[], None] | None = None) -> None:
        """See the protocol."""
        self.squares.start(after_backward)

    def stop(self) -> None:
        """See the protocol."""
        self.squares.stop()

    def pause(self) -> None:
        """See the protocol."""
        self.squares.pause()

    def resume(self, after_backward: Callable[[], None]) -> None:
        """See the protocol."""
        self.squares.resume(after_backward)

    def discard(self) -> None:
        """See the protocol."""
        self.squares.discard()

    def backward(self, loss: Tensor) -> None:
        """See the protocol; also checks that the loss is the mean or the sum that was announced, if it can be seen."""
        self.squares.backward(loss)

    def after_closure(self, loss: Any) -> Any:
        """See the protocol: the same check as :meth:`backward`'s, of a loss that was backwarded."""
        if isinstance(loss, Tensor):
            self.squares.check(loss)
        return loss

    def check_gradients(self) -> None:
        """See the protocol; here the user makes them, and may change them."""

    def covers(self, parameter: Tensor) -> bool:
        """See the protocol."""
        return self.squares.covers(parameter)

    def curvature(self, parameter: Tensor) -> Tensor | None:
        """See the protocol."""
        return self.squares.mean_squares(parameter)

    def gradient_factor(self) -> float:
        """One over the number of examples if the loss is their sum.

        Raises:
            RuntimeError: It is their sum, in several processes, which may have different numbers of examples.
        """
        if self.squares.reduction == "sum" and self.squares.is_parallel:
            raise RuntimeError("reduction must be 'mean' when several processes train together, got 'sum'")
        return 1.0 / max(1, self.squares.num_examples) if self.squares.reduction == "sum" else 1.0


class HessianSource:
    """The Hessian's diagonal, exact or by Hutchinson's estimate, of losses that the user hands over.

    Args:
        store: Of the optimiser.
        collected: Gives the number of the sample.
    """

    differentiates = True
    hint = "use optimizer.backward(loss), and no other backward pass"

    def __init__(self, store: Store, collected: Callable[[], int]) -> None:
        self.store = store
        self.collected = collected
        self._sums: dict[Tensor, Tensor] = {}
        self._written: dict[Tensor, tuple[int, int]] = {}
        self._calls = 0

    @property
    def started(self) -> bool:
        """See the protocol: at any time."""
        return True

    def start(self, after_backward: Callable[[], None] | None = None) -> None:
        """See the protocol."""
        self.discard()

    def stop(self) -> None:
        """See the protocol."""

    def pause(self) -> None:
        """See the protocol: only after drop-in training, which does without this."""

    def resume(self, after_backward: Callable[[], None]) -> None:
        """See :meth:`pause`."""

    def discard(self) -> None:
        """See the protocol."""
        self._sums, self._written, self._calls = {}, {}, 0

    def backward(self, loss: Tensor) -> None:
        """See the protocol."""
        parameters, grads = self.differentiate(loss)
        first = self.store.first
        if first["hessian"] == "exact":
            diagonals = hessian.diagonal(grads, parameters)
        else:
            probes = [self._probe(parameters, k) for k in range(first["probes"])]
            diagonals = hessian.hutchinson(grads, parameters, probes)
        with torch.no_grad():
            for parameter, value in zip(parameters, diagonals, strict=True):
                if value is not None:
                    value = value.detach().to(torch.promote_types(value.dtype, torch.float32))
                    self._sums[parameter] = self._sums[parameter].add_(value) if parameter in self._sums else value
        self.add_gradients(parameters, grads)

    def differentiate(self, loss: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
        """The trainable parameters and the gradients of a loss there, to be differentiated again.

        Raises:
            RuntimeError: The loss was backwarded before, or the process is one of several that train together.
        """
        import torch.distributed as distributed

        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise RuntimeError(
                f"hessian must be 'reparameterized' when several processes train together, got {self._kind!r}"
            )
        if self._calls == 0 and self._has_gradients():
            raise RuntimeError(self._backwarded)
        parameters: list[Tensor] = [s.parameter for s in self.store.slots() if s.parameter.requires_grad]
        try:
            grads = hessian.gradients(loss, parameters)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise RuntimeError(self._backwarded) from None
        for parameter, grad in zip(parameters, grads, strict=True):
            if grad is not None and grad.is_sparse:
                name = self.store.name_of(parameter)
                raise RuntimeError(f"the gradient of parameter {name} must be dense, got a sparse one")
        return parameters, grads

    def add_gradients(self, parameters: list[Tensor], grads: list[Tensor | None]) -> None:
        """As ``backward`` does: to ``p.grad``."""
        for parameter, grad in zip(parameters, grads, strict=True):
            if grad is not None:
                grad = grad.detach()
                parameter.grad = grad.clone() if parameter.grad is None else parameter.grad.add_(grad)
                self._written[parameter] = id(parameter.grad), parameter.grad._version
        self._calls += 1

    def check_gradients(self) -> None:
        """See the protocol.

        Raises:
            RuntimeError: They were made or changed by others.
        """
        if self._calls == 0 and self._has_gradients():
            raise RuntimeError(self._backwarded)
        for parameter, written in self._written.items():
            grad = parameter.grad
            if grad is None or (id(grad), grad._version) != written:
                raise RuntimeError(
                    f"the gradient of parameter {self.store.name_of(parameter)} must be left alone inside the "
                    "block after backward(loss), got another one: clip between block and step(), and call "
                    "backward(loss) of the optimiser only"
                )

    def after_closure(self, loss: Any) -> Any:
        """See the protocol: the loss is differentiated here, if the closure has not called ``optimizer.backward``."""
        if self._calls > 0:
            return loss
        if not isinstance(loss, Tensor):
            raise TypeError(f"closure must return the loss when hessian={self._kind!r}, got {loss!r}")
        self.backward(loss)
        return loss.detach()

    def covers(self, parameter: Tensor) -> bool:
        """See the protocol."""
        return True

    def curvature(self, parameter: Tensor) -> Tensor | None:
        """See the protocol."""
        return self._sums.get(parameter)

    def gradient_factor(self) -> float:
        """The loss is a mean."""
        return 1.0

    @property
    def _kind(self) -> str:
        kind: str = self.store.first["hessian"]
        return kind

    @property
    def _backwarded(self) -> str:
        """What to tell who called ``backward``."""
        return (
            f"the loss must not be backwarded when hessian={self._kind!r}, which differentiates it twice, got one that "
            "was: return it from the closure, or call optimizer.backward(loss) inside the block"
        )

    def _has_gradients(self) -> bool:
        return any(slot.parameter.grad is not None for slot in self.store.slots())

    def _probe(self, parameters: list[Tensor], number: int) -> list[Tensor]:
        """Random signs, drawn like all noise from the seed and the numbers of step, sample and parameter."""
        first = self.store.first
        collected = self.collected()
        key = (self._calls * first["mc_samples"] + collected) * first["probes"] + number
        indices: dict[Tensor, int] = {slot.parameter: slot.index for slot in self.store.slots()}
        signs = []
        for p in parameters:
            draw = noise.normal(first["seed"], first["noise_step"], key, indices[p], p.shape, stream=noise.PROBES)
            signs.append(torch.where(draw.signbit(), -1.0, 1.0).to(p))
        return signs
