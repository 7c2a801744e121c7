"""Kronecker factors of the curvature of linear and convolutional layers, collected during backward passes.

Source: Martens and Grosse 2015 (arXiv 1503.05671) for linear layers, Grosse and Martens 2016 (arXiv 1602.01407) for
convolutions: gradients at different positions are taken as independent ("expand" in Eschenhagen et al. 2023, arXiv
2311.00636).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.curvature.closed import ClosedForm
from bayesadam.curvature.layers import ConvForm, Form, LinearForm, Sink
from bayesadam.curvature.passes import Call, Method
from bayesadam.curvature.per_example import PerExampleSquares
from bayesadam.curvature.totals import chunks
from bayesadam.native.device import working_set

CHUNK = 2**26
"""Memory in bytes for the columns of a convolution's inputs that are formed at once on a CPU."""


@dataclass
class LayerFactors:
    """The Kronecker factors of one layer, in float64: ``B kron A`` for the weight, and ``B`` for the bias.

    Attributes:
        weight: Name of the weight; None if it is not included.
        bias: Name of the bias; None if there is none, or it is not included.
        outputs: ``B``, ``(O, O)``: the sum over all positions of all examples of the outer products of the layer's
            output gradients.
        inputs: ``A``, ``(I, I)``: the mean over those that count (see :meth:`KroneckerFactors.count_only`) of the outer
            products of the vectors that the weight is multiplied by. None without a weight.
    """

    weight: str | None
    bias: str | None
    outputs: Tensor
    inputs: Tensor | None


class FactoredForm(ClosedForm):
    """The method of a layer whose curvature is factored.

    A layer that is called more than once in a forward pass, or shares a parameter, has diagonal squares instead.
    """

    form: LinearForm | ConvForm
    outputs: Tensor | None = None
    inputs: Tensor | None = None
    count: int | Tensor = 0
    counted: Tensor | None = None

    def squares(self, call: Call, sink: Sink) -> None:
        """Add outer products; see :class:`Method`."""
        module: Any = call.unit.module
        inputs, grads = self._whole(call)
        gradients = self.form.gradient_columns(grads)
        if call.context is None:
            self.outputs = _added(self.outputs, gradients.flatten(1))
        elif call.received == 1:
            self.outputs = call.context if self.outputs is None else self.outputs.add_(call.context)
        if "weight" not in sink.totals:
            return
        counted = None
        if self.counted is not None and self.counted.shape == gradients.shape[1:]:
            counted = self.counted = self.counted | (torch.linalg.vector_norm(gradients, dim=0) != 0.0)
        if call.received != (1 if counted is None else call.during.backwards):
            return
        out, *side = module.weight.shape
        bytes_each = inputs.element_size() * math.prod(side) * (grads[0].numel() // out)
        for part in chunks(len(inputs), bytes_each, working_set(inputs.device, CHUNK)):
            columns = self.form.columns(module, inputs[part], sink.scratch)
            if counted is not None:
                columns = columns.where(counted[part].flatten(), 0.0)
            self.inputs = _added(self.inputs, columns)
            self.count += columns.shape[1] if counted is None else counted[part].sum()

    def merges(self, call: Call) -> bool:
        """False, since outer products are added pass by pass."""
        return False

    def _takes_over(self, call: Call, inputs: Tensor, output: Tensor) -> bool:
        return False


class KroneckerFactors(PerExampleSquares):
    """Kronecker factors of linear and ungrouped convolutional layers, and squared gradients of all other parameters.

    The factors are those of the sum over the examples of the outer products of their gradients. See
    :class:`PerExampleSquares` for how a model is followed, and :class:`LayerFactors` for the result.
    """

    @staticmethod
    def _closed(form: Form, module: nn.Module) -> Method:
        ungrouped = getattr(module, "groups", 1) == 1
        return FactoredForm(form) if isinstance(form, LinearForm | ConvForm) and ungrouped else ClosedForm(form)

    def factored(self) -> Iterator[tuple[nn.Module, str]]:
        """The modules whose curvature is factored, and their names."""
        for unit in self._collector.units:
            if isinstance(unit.method, FactoredForm):
                yield unit.module, unit.name

    def count_only(self, counted: Tensor | None) -> None:
        """Say which targets of the last forward pass count, if some do not.

        In layers whose outputs have the targets' axes, as ``(N, T, O)`` and ``(N, T)``, a position without such a
        target counts only if its output has a gradient, because outputs at other positions depend on it. In other
        layers all positions count, since a gradient may also vanish by chance, behind a ReLU.
        """
        for unit in self._collector.units:
            if isinstance(unit.method, FactoredForm):
                unit.method.counted = counted

    def give(self, output: Tensor, total: Callable[[], Tensor]) -> None:
        """Give the factor of the layer that gives the outputs of the last forward pass, if there is one, instead of
        summing the outer products of their gradients in several backward passes.

        Args:
            output: The outputs, whose last axis has those of the layer.
            total: Function that returns ``B`` of this forward pass; see :class:`LayerFactors`.
        """
        call = getattr(output.grad_fn, "call", None)
        if not isinstance(call, Call) or call.during.calls[call.unit] > 1:
            return
        method, slots = call.unit.method, call.unit.slots.values()
        if isinstance(method, FactoredForm) and isinstance(method.form, LinearForm) and all(s.uses == 1 for s in slots):
            call.context = total()

    def layers(self) -> Iterator[LayerFactors]:
        """The factors of all layers that have any.

        Raises:
            RuntimeError: A layer was called once in some forward passes, and more often in others.
        """
        for unit in self._collector.units:
            method: Any = unit.method
            if not isinstance(method, FactoredForm) or method.outputs is None:
                continue
            names: dict[str, str | None] = {"weight": None, "bias": None}
            for local, slot in unit.slots.items():
                if slot.uses == 1 and slot.parameter.requires_grad:
                    names[local] = slot.name
                    if not slot.total.empty:
                        raise RuntimeError(
                            f"{unit} must be called equally often in all forward passes, got some with one call"
                        )
            inputs = None if method.inputs is None else method.inputs / method.count
            yield LayerFactors(names["weight"], names["bias"], method.outputs, inputs)


def _added(total: Tensor | None, columns: Tensor) -> Tensor:
    """``total + columns columns'`` in float64."""
    products = (columns @ columns.mT).double()
    return products if total is None else total.add_(products)
