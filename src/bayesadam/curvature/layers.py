"""Closed forms of the squared per-example gradients of layers, from a layer's input and output gradient."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from bayesadam.curvature.totals import CHUNK, Scratch, Total, chunks
from bayesadam.functional import curvature as closed
from bayesadam.native.device import working_set


class Sink:
    """Collects squares for the parameters of one call of a layer, and if requested the plain sums of gradients.

    Args:
        totals: Totals by the layer's parameter name; other parameters are not needed.
        alpha: Factor of the squares; see :class:`Total`.
        scratch: Buffers.
        summed: Mapping by parameter name that is filled with the sum over the examples of their gradients.
    """

    def __init__(
        self, totals: dict[str, Total], alpha: float, scratch: Scratch, summed: dict[str, Tensor] | None = None
    ) -> None:
        self.totals = totals
        self.alpha = alpha
        self.scratch = scratch
        self.summed = summed

    def add(self, name: str, gradients: Tensor) -> None:
        """Square and add per-example gradients ``(m, *shape)``, which may be overwritten."""
        total = self.totals[name]
        value = total.add(gradients.shape[1:], gradients, self.alpha)
        summed = None
        if self.summed is not None:
            if name not in self.summed:
                self.summed[name] = gradients.new_zeros(gradients.shape[1:])
            summed = self.summed[name]
        closed.add_squares_(value, gradients, alpha=total.alpha, summed=summed)


class Form(abc.ABC):
    """Per-example gradients of one type of layer; the first axis of ``inputs`` and ``grads`` has the examples."""

    @abc.abstractmethod
    def gradients(
        self, module: Any, inputs: Tensor, grads: Tensor, names: Sequence[str], scratch: Scratch
    ) -> dict[str, Tensor]:
        """Per-example gradients ``(m, *shape)`` by parameter name; in buffers, valid until the next call."""

    @abc.abstractmethod
    def bytes_each(self, module: Any, inputs: Tensor, grads: Tensor) -> int:
        """Memory that :meth:`gradients` takes for one example."""

    @abc.abstractmethod
    def least_axes(self, module: Any) -> int:
        """Smallest number of axes of an input with a batch axis."""

    def prepare(self, module: Any, inputs: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
        """Compute values that depend on the whole minibatch; called before the other methods."""
        return inputs, grads

    def squares(self, module: Any, inputs: Tensor, grads: Tensor, sink: Sink) -> None:
        """Add the squares of all examples to the sink.

        The gradients of a chunk of examples are squared at a time, those of a bias, which is small, at once.
        """
        if "bias" in sink.totals:
            sink.add("bias", self.gradients(module, inputs, grads, ("bias",), sink.scratch)["bias"])
        names = [name for name in sink.totals if name != "bias"]
        if not names:
            return
        limit = working_set(grads.device, CHUNK)
        for part in chunks(inputs.shape[0], self.bytes_each(module, inputs, grads), limit):
            gradients_of_part = self.gradients(module, inputs[part], grads[part], names, sink.scratch)
            for name, gradients in gradients_of_part.items():
                sink.add(name, gradients)


class LinearForm(Form):
    """``nn.Linear`` on ``(m, *positions, in)``."""

    def gradients(
        self, module: Any, inputs: Tensor, grads: Tensor, names: Sequence[str], scratch: Scratch
    ) -> dict[str, Tensor]:
        """See :class:`Form`."""
        inputs, grads = _positions(inputs), _positions(grads)
        gradients = {}
        if "weight" in names:
            shape = (inputs.shape[0], grads.shape[2], inputs.shape[2])
            out = scratch.get("gradients", shape, grads)
            gradients["weight"] = torch.bmm(grads.transpose(1, 2), inputs, out=out)  # the sum over positions
        if "bias" in names:
            gradients["bias"] = grads.sum(1)
        return gradients

    def squares(self, module: Any, inputs: Tensor, grads: Tensor, sink: Sink) -> None:
        """See :class:`Form`; without positions no per-example gradient is made.

        The square of an outer product is the outer product of the squares, so their sum is one matrix product.
        """
        if (inputs.ndim > 2 and math.prod(inputs.shape[1:-1]) != 1) or sink.summed is not None:
            super().squares(module, inputs, grads, sink)
            return
        if inputs.ndim > 2:
            inputs, grads = inputs.flatten(1), grads.flatten(1)
        squared = torch.square(grads, out=sink.scratch.get("squared grads", grads.shape, grads))
        if "weight" in sink.totals:
            total = sink.totals["weight"]
            value, beta = total.open((grads.shape[1], inputs.shape[1]), grads, sink.alpha)
            right = torch.square(inputs, out=sink.scratch.get("squared inputs", inputs.shape, inputs))
            value.addmm_(squared.t(), right, alpha=total.alpha, beta=beta)
        if "bias" in sink.totals:
            total = sink.totals["bias"]
            value, beta = total.open(grads.shape[1:], grads, sink.alpha)
            ones = sink.scratch.ones(grads.shape[0], grads)
            value.addmv_(squared.t(), ones, alpha=total.alpha, beta=beta)

    def columns(self, module: Any, inputs: Tensor, scratch: Scratch) -> Tensor:
        """The vectors that the weight is multiplied by, at all positions of all examples, ``(in, positions)``."""
        return inputs.reshape(-1, inputs.shape[-1]).mT

    def gradient_columns(self, grads: Tensor) -> Tensor:
        """The output gradients at these positions, ``(out, *positions)``."""
        return grads.movedim(-1, 0)

    def bytes_each(self, module: Any, inputs: Tensor, grads: Tensor) -> int:
        """See :class:`Form`."""
        return grads.element_size() * grads.shape[-1] * inputs.shape[-1]

    def least_axes(self, module: Any) -> int:
        """See :class:`Form`."""
        return 2

    def backward(
        self, module: nn.Linear, inputs: Tensor, weight: Tensor, grad: Tensor, asked: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """The requested gradients of inputs, weight and bias."""
        flat = grad.reshape(-1, grad.shape[-1])
        return (
            grad @ weight if asked[0] else None,
            flat.t() @ inputs.reshape(-1, inputs.shape[-1]) if asked[1] else None,
            flat.sum(0) if asked[2] else None,
        )


class ConvForm(Form):
    """``nn.Conv1d``, ``nn.Conv2d`` and ``nn.Conv3d`` with all their options."""

    def gradients(
        self, module: Any, inputs: Tensor, grads: Tensor, names: Sequence[str], scratch: Scratch
    ) -> dict[str, Tensor]:
        """See :class:`Form`."""
        flat = grads.flatten(2)
        by_name = {}
        if "weight" in names:
            padded = _pad(module, inputs, scratch)
            windows = closed.patches(padded, module.kernel_size, module.stride, module.dilation)
            columns = scratch.get("columns", windows.shape, grads).copy_(windows)
            columns = columns.view(len(inputs), -1, flat.shape[2])
            shape = (len(inputs), module.out_channels, columns.shape[1] // module.groups)
            out = scratch.get("gradients", shape, grads)
            gradients = closed.kernel_gradients(columns, flat.contiguous(), module.groups, out)
            per_group = module.in_channels // module.groups
            by_name["weight"] = gradients.view(len(inputs), module.out_channels, per_group, *module.kernel_size)
        if "bias" in names:
            by_name["bias"] = flat.sum(2)
        return by_name

    def columns(self, module: Any, inputs: Tensor, scratch: Scratch) -> Tensor:
        """See :class:`LinearForm`; without groups, ``(channels * kernel size, positions)``."""
        windows = closed.patches(_pad(module, inputs, scratch), module.kernel_size, module.stride, module.dilation)
        inner = len(module.kernel_size) + 1
        return windows.movedim(0, inner).reshape(math.prod(windows.shape[1 : inner + 1]), -1)

    def gradient_columns(self, grads: Tensor) -> Tensor:
        """See :class:`LinearForm`."""
        return grads.movedim(1, 0)

    def bytes_each(self, module: Any, inputs: Tensor, grads: Tensor) -> int:
        """See :class:`Form`."""
        kernel = math.prod(module.kernel_size)
        columns = module.in_channels * kernel * math.prod(grads.shape[2:])
        weight = module.out_channels * module.in_channels // module.groups * kernel
        return int(grads.element_size() * (columns + weight))

    def least_axes(self, module: Any) -> int:
        """See :class:`Form`."""
        return len(module.kernel_size) + 2

    def backward(
        self, module: _ConvNd, inputs: Tensor, weight: Tensor, grad: Tensor, asked: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """The requested gradients of inputs, weight and bias."""
        if not any(asked):
            return None, None, None
        padding, transposed, output_padding = module.padding, False, [0] * len(module.kernel_size)
        gradients: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
            grad,
            inputs,
            weight,
            [module.out_channels],
            module.stride,
            padding,
            module.dilation,
            transposed,
            output_padding,
            module.groups,
            asked,
        )
        return gradients


class EmbeddingForm(Form):
    """``nn.Embedding`` on indices of any shape ``(m, *positions)``."""

    def gradients(
        self, module: Any, inputs: Tensor, grads: Tensor, names: Sequence[str], scratch: Scratch
    ) -> dict[str, Tensor]:
        """See :class:`Form`."""
        indices, grads = self._masked(module, inputs), _positions(grads)
        return {"weight": closed.embedding_gradients(indices, grads, module.num_embeddings)}

    def squares(self, module: Any, inputs: Tensor, grads: Tensor, sink: Sink) -> None:
        """See :class:`Form`; only rows that are used are made."""
        total = sink.totals["weight"]
        value = total.add((module.num_embeddings, module.embedding_dim), grads, sink.alpha)
        indices, grads = self._masked(module, inputs), _positions(grads)
        closed.add_embedding_squares_(value, indices, grads, alpha=total.alpha)

    def bytes_each(self, module: Any, inputs: Tensor, grads: Tensor) -> int:
        """See :class:`Form`."""
        return int(grads.element_size() * (module.num_embeddings + 1) * module.embedding_dim)

    def least_axes(self, module: Any) -> int:
        """See :class:`Form`."""
        return 1

    def prepare(self, module: Any, inputs: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
        """Divide every contribution by the count of its index in the minibatch, with ``scale_grad_by_freq``."""
        if module.scale_grad_by_freq:
            counts = torch.bincount(inputs.flatten(), minlength=module.num_embeddings)
            grads = grads / counts[inputs].unsqueeze(-1)
        return inputs, grads

    def _masked(self, module: nn.Embedding, indices: Tensor) -> Tensor:
        indices = indices.reshape(len(indices), -1)
        return indices if module.padding_idx is None else indices.masked_fill(indices == module.padding_idx, -1)


def _positions(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1, tensor.shape[-1])


def _pad(module: _ConvNd, inputs: Tensor, scratch: Scratch) -> Tensor:
    sides: list[int] = module._reversed_padding_repeated_twice
    if not any(sides):
        return inputs
    if module.padding_mode != "zeros":
        return F.pad(inputs, sides, mode=module.padding_mode)
    before = sides[0::2][::-1]
    shape = [n + a + b for n, a, b in zip(inputs.shape[2:], before, sides[1::2][::-1], strict=True)]
    shape = [*inputs.shape[:2], *shape]
    padded = scratch.get(("padded", *inputs.shape, *sides), shape, inputs, zero=True)
    inner = padded
    for axis, (start, length) in enumerate(zip(before, inputs.shape[2:], strict=True)):
        inner = inner.narrow(axis + 2, start, length)
    inner.copy_(inputs)
    return padded
