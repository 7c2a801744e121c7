"""Jacobians layer by layer: one backward pass per output for all data points, and closed forms in the layers.

Consider a linear layer with inputs ``a`` and output gradients ``b_k`` (of the network's output ``k``), without
positions, and with independent weights of variance ``V`` and biases of variance ``v``. It adds to the covariance of
outputs ``k`` and ``l`` at a data point

    ``sum_o b_k[o] b_l[o] (sum_i V[o, i] a[i]^2 + v[o])``

so that no tensor of the size of its weights is formed for a data point. The same holds for weights that are independent
in a basis ``L kron R``, to which ``b_k`` and ``a`` are rotated first (``L' b_k``, ``R' a``), and for correlated
weights, where each column of the factor is treated as a change of the weights. For all other layers the derivatives
with respect to their weights are formed, for some data points at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from bayesadam.checks import truths
from bayesadam.curvature.layers import Form
from bayesadam.curvature.registry import form_of
from bayesadam.curvature.totals import Scratch, chunks
from bayesadam.functional.autocast import without_autocast
from bayesadam.functional.curvature import precision, wide, widened
from bayesadam.modules.calls import first_argument
from bayesadam.modules.mean_network import MeanNetwork
from bayesadam.predictive.batches import Rows
from bayesadam.predictive.covariance import OutputCovariance


class NotLayerwiseError(Exception):
    """Raised if a network uses its random weights in a way that has no closed form."""


@dataclass(frozen=True)
class _Layer:
    """A module with random parameters of its own, and their full names by the names that the module gives them."""

    module: nn.Module
    form: Form
    names: Mapping[str, str]


@dataclass(frozen=True)
class _Call:
    """One call of a layer; the gradient of its output arrives at the edge, even if the output is changed in place."""

    layer: _Layer
    inputs: Tensor
    edge: GradientEdge
    shape: torch.Size


class Layerwise:
    """Contributions to the covariance in closed form, for networks in which these are found to agree with autograd.

    Args:
        network: The network at the mean.
        row: One data point, on which the network is examined.
        limit: Largest size in bytes of the derivatives of a layer that are formed at once.

    Raises:
        NotLayerwiseError: There are random weights outside layers with a closed form; or a layer is not called exactly
            once, its first axis is not that of the data points, or its weights are also used elsewhere.
    """

    def __init__(self, network: MeanNetwork, row: Rows, limit: int) -> None:
        self.network = network
        self.limit = limit
        self.scratch = Scratch()
        self.layers = list(_layers(network))
        output, calls = self._graph(row)
        self.output_bytes = sum(call.shape.numel() for call in calls) * wide(output.dtype).itemsize
        _, self.saved_bytes = network.look(row.batch)
        self._compare(output, calls)

    def bytes_each(self, outputs: int) -> int:
        """Memory that the graph and the output gradients of one data point take, in bytes."""
        return outputs * self.output_bytes + self.saved_bytes

    def add_to(self, covariance: OutputCovariance, rows: Rows) -> None:
        """Add all contributions of a chunk of data points.

        Raises:
            NotLayerwiseError: As for the class, or rows are not data points; then nothing has been added.
        """
        output, calls = self._graph(rows)
        count = rows.count
        outputs = output.numel() // count
        grads = [output.new_empty(count, outputs, *call.shape[1:], dtype=wide(output.dtype)) for call in calls]
        for k in range(outputs):
            basis = output.new_zeros(count, outputs)
            basis[:, k] = 1.0
            arrived = _gradients(output, [call.edge for call in calls], basis.view_as(output), retain=True)
            for into, grad in zip(grads, arrived, strict=True):
                into[:, k] = 0.0 if grad is None else grad
        self._check_rows(output, calls, grads)
        with without_autocast([output]):
            for call, grad in zip(calls, grads, strict=True):
                self._add(covariance, call, grad)

    def _add(self, covariance: OutputCovariance, call: _Call, grads: Tensor) -> None:
        layer, inputs = call.layer, widened(call.inputs)
        if isinstance(layer.module, nn.Linear) and inputs.ndim == 2:
            self._add_linear(covariance, layer, inputs, grads)
            return
        weights = sum(covariance.weights.size_of(name) for name in layer.names.values())
        for part in chunks(len(inputs), grads.shape[1] * weights * grads.element_size(), self.limit):
            rows: dict[str, list[Tensor]] = {local: [] for local in layer.names}
            for k in range(grads.shape[1]):
                for local, made in self._closed(layer, inputs[part], grads[part, k]).items():
                    rows[local].append(made.flatten(1).clone())
            for local, name in layer.names.items():
                covariance.add(name, torch.stack(rows[local], dim=1), part)

    def _add_linear(self, covariance: OutputCovariance, layer: _Layer, inputs: Tensor, grads: Tensor) -> None:
        """Add the contribution of a linear layer by its effect on the layer's outputs, without derivatives by its
        weights.
        """
        count, _, width = grads.shape
        variance, factor = (
            {local: values[name] for local, name in layer.names.items() if name in values}
            for values in (covariance.weights.variance, covariance.weights.factor)
        )
        spreads: dict[int, tuple[Tensor | None, Tensor]] = {}  # by the basis: a weight and its bias may have one
        for local, value in variance.items():
            left, right = (
                bases.get(layer.names[local]) for bases in (covariance.weights.left, covariance.weights.right)
            )
            spread = spreads.setdefault(id(left), (left, grads.new_zeros(count, width)))[1]
            if local == "bias":
                spread += value
            else:
                turned = inputs if right is None else inputs @ right.to(inputs.dtype)
                spread.addmm_(turned.square(), value.to(grads.dtype).mT)
        for left, spread in spreads.values():
            covariance.add_layer(grads if left is None else grads @ left.to(grads.dtype), spread)
        if not factor:
            return
        dtype, rank = covariance.projected.dtype, covariance.projected.shape[2]
        for columns in chunks(rank, count * width * dtype.itemsize, self.limit):
            moved = torch.zeros(count, width, columns.stop - columns.start, dtype=dtype, device=grads.device)
            if "weight" in factor:
                changes = factor["weight"][:, columns].to(dtype).view(width, inputs.shape[1], -1)
                moved += (inputs.to(dtype) @ changes.transpose(0, 1).flatten(1)).view(moved.shape)
            if "bias" in factor:
                moved += factor["bias"][:, columns]
            covariance.add_moved(grads, moved, columns)

    def _closed(self, layer: _Layer, inputs: Tensor, grads: Tensor) -> dict[str, Tensor]:
        return layer.form.gradients(layer.module, inputs, grads, list(layer.names), self.scratch)

    def _graph(self, rows: Rows) -> tuple[Tensor, list[_Call]]:
        calls: list[_Call] = []
        with _recorded(self.layers, calls):
            output = self.network.graph(rows.batch)
        if sorted(id(call.layer) for call in calls) != sorted(map(id, self.layers)):
            raise NotLayerwiseError
        for call in calls:
            axes = call.layer.form.least_axes(call.layer.module)
            if not (call.inputs.ndim >= axes and len(call.inputs) == call.shape[0] == rows.count):
                raise NotLayerwiseError
        return output, calls

    def _check_rows(self, output: Tensor, calls: list[_Call], grads: list[Tensor]) -> None:
        """Check that row ``n`` in a layer is data point ``n``, by a pass with other weights of the data points.

        A layer may have as many rows as there are data points by chance, for example for packed sequences of words.
        """
        count, outputs = grads[0].shape[:2]
        weights = torch.arange(1, count + 1, device=output.device).cos().to(output.dtype)
        direction = weights.unsqueeze(1).expand(count, outputs).reshape(output.shape)
        good = []
        edges = [call.edge for call in calls]
        for grad, arrived in zip(grads, _gradients(output, edges, direction, retain=False), strict=True):
            expected = grad.sum(1) * weights.view(-1, *[1] * (grad.ndim - 2))
            got = torch.zeros_like(expected) if arrived is None else arrived.to(expected.dtype)
            good.append(torch.dist(expected, got) <= precision(output) ** 0.5 * grad.norm())
        if not all(truths(good)):  # a device is waited for once in a chunk, since this decides what is done with it
            raise NotLayerwiseError

    def _compare(self, output: Tensor, calls: list[_Call]) -> None:
        """Compare the closed forms with autograd in one direction of the outputs."""
        direction = torch.arange(1, output.numel() + 1, device=output.device).cos().to(output.dtype).view_as(output)
        good = []
        edges = [call.edge for call in calls]
        for call, grad in zip(calls, _gradients(output, edges, direction, retain=True), strict=True):
            names = call.layer.names
            tensors = [self.network.tensors[name] for name in names.values()]
            exact = _gradients(output, tensors, direction, retain=True, materialize_grads=True)
            grad = torch.zeros(call.shape, device=output.device, dtype=output.dtype) if grad is None else grad
            tolerance = precision(grad) ** 0.5
            with without_autocast([grad]):
                closed = self._closed(call.layer, widened(call.inputs), widened(grad))
            for local, expected in zip(names, exact, strict=True):
                expected = widened(expected)
                good.append(torch.dist(closed[local][0], expected) <= tolerance * expected.norm())
        if not all(truths(good)):
            raise NotLayerwiseError


def _layers(network: MeanNetwork) -> Iterator[_Layer]:
    wanted = set(network.names)
    for path, module in network.model.named_modules():
        paths = {local: f"{path}.{local}" if path else local for local in module._parameters}
        names = {local: name for local, name in paths.items() if name in wanted}
        form = form_of(module)
        if names and form is not None:
            wanted -= set(names.values())
            yield _Layer(module, form, names)
    if wanted:
        raise NotLayerwiseError


@contextmanager
def _recorded(layers: list[_Layer], calls: list[_Call]) -> Iterator[None]:
    """Context in which calls of the layers are appended to the list."""

    def hook_of(layer: _Layer) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            if not output.requires_grad:
                raise NotLayerwiseError
            inputs: Tensor = first_argument(args, kwargs)
            calls.append(_Call(layer, inputs.detach(), get_gradient_edge(output), output.shape))

        return hook

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.module.register_forward_hook(hook_of(layer), with_kwargs=True).remove)
        yield


@torch.enable_grad()
def _gradients(output: Tensor, inputs: Sequence[Any], direction: Tensor, *, retain: bool, **options: Any) -> Any:
    """Gradients of a sum: with the direction as an argument of its own, PyTorch imports SymPy, which takes a while."""
    product = (output * direction).sum()
    return torch.autograd.grad(product, list(inputs), retain_graph=retain, allow_unused=True, **options)
