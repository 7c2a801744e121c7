"""Second derivatives as curvature, of losses that the user passes to the optimiser."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.core.sampling import Weights
from bayesadam.curvature import PerExampleSquares
from bayesadam.functional import hessian
from bayesadam.modules.sharding import rank_and_size


class HessianSource:
    """The diagonal of the Hessian of a loss, exact or by Hutchinson's estimate.

    The user must pass the loss to :meth:`backward` instead of calling ``loss.backward()``.

    Args:
        weights: Samples and means in the weights.
        kind: ``"exact"`` or ``"hutchinson"``.
    """

    def __init__(self, weights: Weights, kind: str) -> None:
        self.weights, self.layout, self.kind = weights, weights.layout, kind
        self.discard()

    def discard(self) -> None:
        """Forget everything that was collected."""
        self._diagonals: dict[Tensor, Tensor] = {}
        self._written: dict[Tensor, tuple[int, int]] = {}
        self._calls = 0

    start = discard

    def stop(self) -> None:
        """Do nothing, since only losses that are passed to :meth:`backward` are used."""

    def covers(self, parameter: Tensor) -> bool:
        """Whether the curvature of a parameter can be known."""
        return True

    def diagonal(self, parameter: Tensor) -> Tensor | None:
        """The part of the diagonal that belongs to a parameter, on the scale of ``p.grad``."""
        return self._diagonals.get(parameter)

    def backward(self, loss: Tensor) -> None:
        """Add a mean loss's gradients to ``p.grad``, and its second derivatives to those of the sample."""
        parameters, grads = self._differentiate(loss)
        if self.kind == "exact":
            diagonals = hessian.diagonal(grads, parameters)
        else:
            probes = [self._probe(parameters, k) for k in range(self.layout.first["probes"])]
            diagonals = hessian.hutchinson(grads, parameters, probes)
        with torch.no_grad():
            for parameter, value in zip(parameters, diagonals, strict=True):
                if value is not None:
                    value = value.detach().to(torch.promote_types(value.dtype, torch.float32))
                    known = self._diagonals.get(parameter)
                    self._diagonals[parameter] = value if known is None else known.add_(value)
        for parameter, grad in zip(parameters, grads, strict=True):
            if grad is not None:
                grad = grad.detach()
                parameter.grad = grad.clone() if parameter.grad is None else parameter.grad.add_(grad)
                self._written[parameter] = id(parameter.grad), parameter.grad._version
        self._calls += 1

    def _differentiate(self, loss: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
        """The trainable parameters and the gradients of a loss by them, which can be differentiated again.

        Raises:
            RuntimeError: ``backward()`` was called on the loss before, or the process is one of several that train
                together.
        """
        if rank_and_size()[1] > 1:
            raise RuntimeError(
                f"hessian must be 'reparameterized' when several processes train together, got {self.kind!r}"
            )
        self._check_untouched()
        parameters: list[Tensor] = [m.parameter for m in self.layout.members() if m.parameter.requires_grad]
        try:
            grads = hessian.gradients(loss, parameters)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise self._backwarded() from None
        for parameter, grad in zip(parameters, grads, strict=True):
            if grad is not None and grad.is_sparse:
                name = self.layout.name_of(parameter)
                raise RuntimeError(f"the gradient of parameter {name} must be dense, got a sparse one")
        return parameters, grads

    def check_gradients(self) -> None:
        """Raise ``RuntimeError`` at the end of a block if its gradients were computed or changed elsewhere."""
        self._check_untouched()
        for parameter, written in self._written.items():
            grad = parameter.grad
            if grad is None or (id(grad), grad._version) != written:
                raise RuntimeError(
                    f"the gradient of parameter {self.layout.name_of(parameter)} must not be changed inside the "
                    "block after optimizer.backward(loss), got a changed one: clip gradients between the block and "
                    "step(), and call no other backward()"
                )

    def after_closure(self, loss: Any) -> Any:
        """Differentiate the loss that a closure returned, unless the closure has called ``optimizer.backward``."""
        if self._calls > 0:
            return loss
        if not isinstance(loss, Tensor):
            raise TypeError(f"closure must return the loss when hessian={self.kind!r}, got {loss!r}")
        self.backward(loss)
        return loss.detach()

    def _check_untouched(self) -> None:
        if self._calls == 0 and any(member.parameter.grad is not None for member in self.layout.members()):
            raise self._backwarded()

    def _backwarded(self) -> RuntimeError:
        """The error that is raised if the user called ``loss.backward()``."""
        return RuntimeError(
            f"loss.backward() must not be called when hessian={self.kind!r}, which differentiates the loss twice, "
            "got a loss that was differentiated: return it from the closure, or call optimizer.backward(loss) inside "
            "the block"
        )

    def _probe(self, parameters: list[Tensor], number: int) -> list[Tensor]:
        """Random signs, drawn like all noise from the seed and the numbers of step, sample and parameter."""
        first, drawn = self.layout.first, self.weights.drawn
        sample = 2 * drawn.number + drawn.negative if first["antithetic"] else drawn.number
        key = (self._calls * first["mc_samples"] + sample) * first["probes"] + number
        members: dict[Tensor, Any] = {member.parameter: member for member in self.layout.members()}
        signs = []
        for p in parameters:
            _, group, index = members[p]
            draw = noise.normal(group["seed"], group["noise_step"], key, index, p.shape, stream=noise.PROBES)
            signs.append(torch.where(draw.signbit(), -1.0, 1.0).to(p))
        return signs


Source: TypeAlias = PerExampleSquares | HessianSource
"""A source of curvature that a rule cannot compute from gradient and noise."""
