"""Plain multi-layer perceptrons at many sets of weights: forward, and backward in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesadam.curvature.totals import Scratch
from bayesadam.modules.perceptrons import Layers

Weights = Mapping[str, Tensor]


def _tanh_(hidden: Tensor) -> Tensor:
    """Compute ``tanh(x) = 2 sigmoid(2 x) - 1`` in place: on CPUs, PyTorch's tanh takes four times as long."""
    return hidden.mul_(2.0).sigmoid_().sub_(0.5).mul_(2.0)


def _tanh_backward_(grad: Tensor, output: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward.grad_input(grad, output, grad_input=grad)  # type: ignore[no-any-return]


def _relu_backward_(grad: Tensor, output: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)  # type: ignore[no-any-return]


IN_PLACE = {nn.Tanh: (_tanh_, _tanh_backward_), nn.ReLU: (Tensor.relu_, _relu_backward_)}
"""Functions that overwrite their inputs, and functions of a gradient and the outputs that overwrite the gradient."""


class Perceptron:
    """One forward pass through linear layers and element-wise functions, one after another.

    In memory, units come before data points; the first layer is one product with ``x`` for all samples.

    Args:
        layers: Layers with the prefix of their parameters' names, see :func:`bayesadam.population.plain_layers`.
        weights: Weights by name, ``(k, S, *shape)``.
        x: Inputs ``(k, M, D)``, the same for all samples.
        scratch: Memory of the intermediate results and the outputs, which a further pass in it overwrites: fresh memory
            takes as long as the products. Without it there is no backward pass.

    Attributes:
        output: Outputs, ``(k, S, M, ...)``.
    """

    def __init__(self, layers: Layers, weights: Weights, x: Tensor, *, scratch: Scratch | None = None) -> None:
        self._scratch = scratch
        self._sizes = next(iter(weights.values())).shape[:2]
        self._passed: list[_Linear | Callable[[Tensor], Tensor]] = []
        count, samples = self._sizes
        hidden, is_shared, is_fresh = x.transpose(1, 2), True, False
        for prefix, layer in layers:
            if type(layer) is not nn.Linear:
                hidden, is_fresh = self._elementwise(layer, hidden, is_fresh), False
                continue
            weight, bias = weights[f"{prefix}weight"], weights.get(f"{prefix}bias")
            rows = (count, samples * layer.out_features) if is_shared else (count * samples, layer.out_features)
            weight = weight.reshape(*rows, layer.in_features)
            out = self._place(f"{prefix}outputs", *rows, hidden.shape[2], like=hidden)
            if scratch is not None:
                self._passed.append(_Linear(prefix, hidden, None if is_shared else weight, bias is not None))
            if bias is None:
                hidden = torch.bmm(weight, hidden, out=out)
            else:
                hidden = torch.baddbmm(bias.reshape(*rows, 1), weight, hidden, out=out)
            hidden, is_shared, is_fresh = hidden.reshape(count * samples, layer.out_features, -1), False, True
        self.output = hidden.reshape(count, samples, *hidden.shape[1:]).transpose(2, 3)

    def _place(self, name: str, *shape: int, like: Tensor) -> Tensor | None:
        return None if self._scratch is None else self._scratch.get(name, shape, like)

    def _elementwise(self, layer: nn.Module, hidden: Tensor, is_fresh: bool) -> Tensor:
        if type(layer) in IN_PLACE and is_fresh and not torch.is_grad_enabled():
            forward_, backward_ = IN_PLACE[type(layer)]
            forward_(hidden)
            self._passed.append(lambda grad: backward_(grad, hidden))
            return hidden
        if self._scratch is None:
            result: Tensor = layer(hidden.clone() if getattr(layer, "inplace", False) else hidden)
            return result
        with torch.enable_grad():
            before = hidden.detach().requires_grad_()
            after = layer(before.clone() if getattr(layer, "inplace", False) else before)
        self._passed.append(lambda grad: torch.autograd.grad(after, before, grad)[0])
        output: Tensor = after.detach()
        return output

    @torch.no_grad()
    def backward(
        self, grad: Tensor, *, squares: bool = False, into: Weights | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients with respect to all weights.

        For a layer with inputs ``A`` and gradients ``B`` with respect to its outputs they are ``B A'``, and the sums of
        the squares of single data points are ``B^2 A^2'``.

        Args:
            grad: Gradient with respect to the output, ``(k, S, M, ...)``, which may be overwritten.
            squares: Whether to compute the sums over the data points of their squared gradients, too.
            into: Memory of the gradients by name, ``(k, *shape)``, for one sample.

        Returns:
            Gradients, and sums of squares if they are computed, of each tensor in the order of the layers, ``(k, S,
            numel)``.
        """
        count, samples = self._sizes
        grads: list[Tensor] = []
        sums: list[Tensor] = []
        signal = grad.transpose(2, 3).reshape(count * samples, grad.shape[3], -1)
        for layer in reversed(self._passed):
            if not isinstance(layer, _Linear):
                signal = layer(signal)
                continue
            grads[:0] = layer.products(signal, count, into=into)
            if squares:
                sums[:0] = layer.products(signal.square(), count, squared=True)
            if layer.weight is None:
                break
            transposed = layer.weight.transpose(1, 2)
            out = self._place(f"{layer.prefix}signal", *transposed.shape[:2], signal.shape[2], like=signal)
            signal = torch.bmm(transposed, signal, out=out)
        return self._rows(grads), self._rows(sums)

    @torch.no_grad()
    def second(self, signal: Tensor) -> list[Tensor]:
        """``H A^2'``, the Hessian's diagonal of a single layer, where ``H`` is that of the loss in the output's
        coordinates.

        Args:
            signal: Second derivatives with respect to the output, ``(k, S, M, ...)``; those between two outputs of one
                data point are not needed.

        Returns:
            The diagonal for each tensor, ``(k, S, numel)``.
        """
        (layer,) = self._passed
        assert isinstance(layer, _Linear)
        return self._rows(layer.products(signal.transpose(2, 3).flatten(0, 1), len(signal), squared=True))

    def _rows(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return [part.reshape(*self._sizes, -1) for part in parts]


@dataclass(frozen=True)
class _Linear:
    """Values of a linear layer for the backward pass.

    Attributes:
        prefix: Prefix of the names of its parameters.
        inputs: Inputs, ``(k or k S, in, M)``.
        weight: Weights ``(k S, out, in)``; None for the first layer, which propagates no gradient.
        bias: Whether the layer has a bias.
    """

    prefix: str
    inputs: Tensor
    weight: Tensor | None
    bias: bool

    def products(
        self, signal: Tensor, count: int, *, squared: bool = False, into: Weights | None = None
    ) -> list[Tensor]:
        """``B A'`` for the weight, or with the squares of ``A``; and ``B`` summed for the bias."""
        memory = into or {}
        signal = signal.reshape(count, -1, signal.shape[2]) if self.weight is None else signal
        inputs = self.inputs.square() if squared else self.inputs
        products = [torch.bmm(signal, inputs.transpose(1, 2), out=memory.get(f"{self.prefix}weight"))]
        if self.bias:
            products.append(torch.sum(signal, 2, out=memory.get(f"{self.prefix}bias")))
        return products
