"""Sources of curvature that a rule cannot compute from gradient and noise: hooks on the module, or second
derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.core.layout import Layout
from bayesadam.curvature import PerExampleSquares
from bayesadam.functional import hessian


class CurvatureSource:
    """Transient source of curvature, which collects while the weights hold a sample; by default it does nothing.

    Attributes:
        differentiates: Whether the user must pass the loss to :meth:`backward` instead of calling ``loss.backward()``.
        hint: Advice for a gradient without a curvature.
        started: Whether it collects.
    """

    differentiates = False
    hint = ""
    started: Any = True

    def start(self, after_backward: Callable[[], None] | None = None) -> None:
        """Start collecting for a new sample, and call ``after_backward`` when gradients are complete."""
        self.discard()

    def stop(self) -> None:
        """Stop collecting, since the weights hold the mean again."""

    def pause(self) -> None:
        """Stop collecting, but keep what was collected, since the gradients may be kept."""

    def resume(self, after_backward: Callable[[], None]) -> None:
        """Continue after :meth:`pause`; start if there was no pause since the last start."""

    def discard(self) -> None:
        """Forget everything that was collected."""

    def backward(self, loss: Tensor) -> None:
        """Add a mean loss's gradients to ``p.grad``, and collect its curvature."""
        loss.backward()  # type: ignore[no-untyped-call]

    def after_closure(self, loss: Any) -> Any:
        """Handle the return value of a closure; return the value for the user."""
        return loss

    def check_gradients(self) -> None:
        """Raise at the end of a block if its gradients do not belong to the curvature."""

    def covers(self, parameter: Tensor) -> bool:
        """Whether the curvature of a parameter can be known."""
        return True

    def curvature(self, parameter: Tensor) -> Tensor | None:
        """Curvature collected for a parameter, of its full shape, on the scale of ``p.grad``."""
        return None

    def gradient_factor(self) -> float:
        """Factor by which ``p.grad`` must be multiplied to be the gradient of the mean loss."""
        return 1.0


class ExampleSource(CurvatureSource):
    """Squared per-example gradients, which hooks collect during the user's own backward pass."""

    hint = "it must come from a backward pass through the model that PerExampleSquares was given"

    def __init__(self, squares: PerExampleSquares) -> None:
        self.squares = squares

    @property
    def started(self) -> bool:
        """Part of the base class."""
        return self.squares.started

    def start(self, after_backward: Callable[[], None] | None = None) -> None:
        """Part of the base class."""
        self.squares.start(after_backward)

    def stop(self) -> None:
        """Part of the base class."""
        self.squares.stop()

    def pause(self) -> None:
        """Part of the base class."""
        self.squares.pause()

    def resume(self, after_backward: Callable[[], None]) -> None:
        """Part of the base class."""
        self.squares.resume(after_backward)

    def discard(self) -> None:
        """Part of the base class."""
        self.squares.discard()

    def backward(self, loss: Tensor) -> None:
        """Backpropagate, and check that the loss is the mean or the sum that was announced, if its graph shows it."""
        self.squares.backward(loss)

    def after_closure(self, loss: Any) -> Any:
        """Make the check of :meth:`backward` for a loss that the closure has backpropagated."""
        if isinstance(loss, Tensor):
            self.squares.check(loss)
        return loss

    def covers(self, parameter: Tensor) -> bool:
        """Part of the base class."""
        return self.squares.covers(parameter)

    def curvature(self, parameter: Tensor) -> Tensor | None:
        """Part of the base class."""
        return self.squares.mean_squares(parameter)

    def gradient_factor(self) -> float:
        """One over the number of examples if the loss is their sum, otherwise 1.

        Raises:
            RuntimeError: The loss is a sum in several processes, which may have different numbers of examples.
        """
        if self.squares.reduction == "sum" and self.squares.is_parallel:
            raise RuntimeError("reduction must be 'mean' when several processes train together, got 'sum'")
        return 1.0 / max(1, self.squares.num_examples) if self.squares.reduction == "sum" else 1.0


class HessianSource(CurvatureSource):
    """Diagonal of the Hessian, exact or by Hutchinson's estimate, of losses that the user passes to the optimiser.

    Args:
        layout: The flats of the optimiser.
        collected: Function that returns the number of the sample.
    """

    differentiates = True
    hint = "use optimizer.backward(loss), and no other backward pass"

    def __init__(self, layout: Layout, collected: Callable[[], int]) -> None:
        self.layout = layout
        self.collected = collected
        self._sums: dict[Tensor, Tensor] = {}
        self._written: dict[Tensor, tuple[int, int]] = {}
        self._calls = 0

    def discard(self) -> None:
        """Part of the base class."""
        self._sums, self._written, self._calls = {}, {}, 0

    def backward(self, loss: Tensor) -> None:
        """Part of the base class."""
        parameters, grads = self.differentiate(loss)
        first = self.layout.first
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
        """The trainable parameters and the gradients of a loss by them, which can be differentiated again.

        Raises:
            RuntimeError: ``backward()`` was called on the loss before, or the process is one of several that train
                together.
        """
        import torch.distributed as distributed

        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise RuntimeError(
                f"hessian must be 'reparameterized' when several processes train together, got {self._kind!r}"
            )
        if self._calls == 0 and self._has_gradients():
            raise RuntimeError(self._backwarded)
        parameters: list[Tensor] = [m.parameter for m in self.layout.members() if m.parameter.requires_grad]
        try:
            grads = hessian.gradients(loss, parameters)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise RuntimeError(self._backwarded) from None
        for parameter, grad in zip(parameters, grads, strict=True):
            if grad is not None and grad.is_sparse:
                name = self.layout.name_of(parameter)
                raise RuntimeError(f"the gradient of parameter {name} must be dense, got a sparse one")
        return parameters, grads

    def add_gradients(self, parameters: list[Tensor], grads: list[Tensor | None]) -> None:
        """Add gradients to ``p.grad``, as ``backward`` does."""
        for parameter, grad in zip(parameters, grads, strict=True):
            if grad is not None:
                grad = grad.detach()
                parameter.grad = grad.clone() if parameter.grad is None else parameter.grad.add_(grad)
                self._written[parameter] = id(parameter.grad), parameter.grad._version
        self._calls += 1

    def check_gradients(self) -> None:
        """Check the gradients, as in the protocol.

        Raises:
            RuntimeError: Gradients were computed or changed outside of :meth:`backward`.
        """
        if self._calls == 0 and self._has_gradients():
            raise RuntimeError(self._backwarded)
        for parameter, written in self._written.items():
            grad = parameter.grad
            if grad is None or (id(grad), grad._version) != written:
                raise RuntimeError(
                    f"the gradient of parameter {self.layout.name_of(parameter)} must not be changed inside the "
                    "block after optimizer.backward(loss), got a changed one: clip gradients between the block and "
                    "step(), and call no other backward()"
                )

    def after_closure(self, loss: Any) -> Any:
        """Differentiate the loss, unless the closure has called ``optimizer.backward``."""
        if self._calls > 0:
            return loss
        if not isinstance(loss, Tensor):
            raise TypeError(f"closure must return the loss when hessian={self._kind!r}, got {loss!r}")
        self.backward(loss)
        return loss.detach()

    def curvature(self, parameter: Tensor) -> Tensor | None:
        """Part of the base class."""
        return self._sums.get(parameter)

    @property
    def _kind(self) -> str:
        kind: str = self.layout.first["hessian"]
        return kind

    @property
    def _backwarded(self) -> str:
        """Message for a user who called ``backward``."""
        return (
            f"loss.backward() must not be called when hessian={self._kind!r}, which differentiates the loss twice, "
            "got a loss that was differentiated: return it from the closure, or call optimizer.backward(loss) inside "
            "the block"
        )

    def _has_gradients(self) -> bool:
        return any(member.parameter.grad is not None for member in self.layout.members())

    def _probe(self, parameters: list[Tensor], number: int) -> list[Tensor]:
        """Random signs, drawn like all noise from the seed and the numbers of step, sample and parameter."""
        first = self.layout.first
        collected = self.collected()
        key = (self._calls * first["mc_samples"] + collected) * first["probes"] + number
        indices: dict[Tensor, int] = {member.parameter: member.noise_index for member in self.layout.members()}
        signs = []
        for p in parameters:
            draw = noise.normal(first["seed"], first["noise_step"], key, indices[p], p.shape, stream=noise.PROBES)
            signs.append(torch.where(draw.signbit(), -1.0, 1.0).to(p))
        return signs


class MatrixSource(HessianSource):
    """The whole Hessian of losses that the user passes to the optimiser."""

    def __init__(self, layout: Layout, samples: Callable[[], int]) -> None:
        super().__init__(layout, samples)
        self.matrix: Tensor | None = None

    def discard(self) -> None:
        """Part of the base class."""
        super().discard()
        self.matrix = None

    def backward(self, loss: Tensor) -> None:
        """Part of the base class."""
        parameters, grads = self.differentiate(loss)
        found = hessian.matrix(grads, parameters).detach().double()
        self.matrix = found if self.matrix is None else self.matrix + found
        self.add_gradients(parameters, grads)

    def curvature(self, parameter: Tensor) -> Tensor | None:
        """None, since a matrix cannot be divided between parameters."""
        return None
