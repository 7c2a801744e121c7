"""The curvature of one linear layer, from its inputs and the curvature of the likelihood at its outputs."""

from __future__ import annotations

import abc
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bayesadam.modules.calls import call, first_argument
from bayesadam.modules.last_layer import is_plain_linear, parameters_of_layer
from bayesadam.posterior.dense import MAX_WEIGHTS
from bayesadam.posthoc.trained_network import Hessians, TrainedNetwork, too_large
from bayesadam.predictive.batches import Rows


class Call(NamedTuple):
    """One call of a layer: its inputs, the tensor that gets the gradient of its outputs, and its return value."""

    name: str
    features: Tensor
    leaf: Tensor
    returned: Tensor


class LastLayer(abc.ABC):
    """Follows the forward passes of a network to one linear layer, and differentiates the layers after it.

    Any linear layer may be chosen.

    Args:
        network: The network.
        name: Name of the layer; by default the last ``nn.Linear`` that the model calls, known after the first data.

    Attributes:
        gives_outputs: Whether the outputs of all batches were those of the layer, or a view of them.

    Raises:
        ValueError: There is no such layer, a parameter of it is frozen or shared, or it is too large.
    """

    structure: ClassVar[str]
    needs_factor: ClassVar[bool]
    """Whether the factor of every Hessian is needed where the layer gives the outputs."""
    name: str
    layer: nn.Linear
    names: list[str]
    gives_outputs: bool

    def __init__(self, network: TrainedNetwork, name: str | None) -> None:
        self.network = network
        self.gives_outputs = True
        self._is_named = name is not None
        self._calls: list[Call] = []
        self._handles: dict[str, RemovableHandle] = {}
        layers: dict[str, nn.Linear] = {}
        for path, module in network.model.named_modules():
            if is_plain_linear(module):
                layers[path] = module
        if name is not None and name not in layers:
            raise ValueError(f"last_layer must be the name of an nn.Linear, one of {list(layers)}, got {name!r}")
        if not layers:
            raise ValueError(f"model must have an nn.Linear for structure={self.structure!r}, got none")
        if name is not None:
            layers = {name: layers[name]}
            self._choose(name, layers[name])
        for path, layer in layers.items():
            hook = partial(self._capture, path)
            self._handles[path] = layer.register_forward_hook(hook, prepend=True, with_kwargs=True)

    def _choose(self, name: str, layer: nn.Linear) -> None:
        """Follow this layer only."""
        self.name, self.layer = name, layer
        self.names = list(parameters_of_layer(self.network.model, name))
        self._begin()
        for path, handle in self._handles.items():
            if path != name:
                handle.remove()

    def add(self, rows: Rows, target: Tensor) -> Hessians:
        """Add a batch and return the Hessians at its outputs.

        Raises:
            ValueError: The layer was not called exactly once, or the outputs do not depend on it; or, if no layer was
                named, the outputs depend on weights after or beside the layer, or as for the class.
        """
        layer_call, output = self._run(rows)
        hessians = Hessians(self.network, output, target)
        gives_outputs = _gives(layer_call, output)
        gives = gives_outputs and output is layer_call.returned and hessians.are_blocks  # positions are separate blocks
        if self.needs_factor or not gives:
            if parts := hessians.parts(rows):
                for part in parts:
                    self.add(*part)
                return hessians
        self._collect(layer_call, output, hessians, gives=gives)
        if not gives_outputs:
            self.gives_outputs = False
            if not self._is_named:
                self._check_is_last(output)
        return hessians

    def _run(self, rows: Rows) -> tuple[Call, Tensor]:
        """The call of the layer in a forward pass, and the outputs.

        In the first pass the graph is cut behind every linear layer if none was named. If the outputs are not those of
        the last one, the pass is repeated with a cut there only, since a cut hides the layers before it.
        """
        self._calls.clear()
        with torch.enable_grad():
            output = call(self.network.model, rows.batch, self.network.output)
        if not hasattr(self, "layer"):
            if not self._calls:
                raise ValueError(f"model must call an nn.Linear for structure={self.structure!r}, got no call")
            last: Any = self.network.model.get_submodule(self._calls[-1].name)
            self._choose(self._calls[-1].name, last)
            if not _gives(self._calls[-1], output):
                return self._run(rows)
        calls: list[Call] = []
        for each in self._calls:
            if each.name == self.name:
                calls.append(each)
        if len(calls) != 1:
            raise ValueError(
                f"last_layer must be called once in the model's forward, got {len(calls)} calls of {self.name!r}"
            )
        return calls[0], output

    def _check_is_last(self, output: Tensor) -> None:
        """Raise if the outputs depend on trainable weights after or beside the layer."""
        weights = self.network.trainable
        gradients = torch.autograd.grad(output.sum(), [*weights.values()], retain_graph=True, allow_unused=True)
        for name, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:  # never for the layer's own, which are before the cut
                raise ValueError(
                    "last_layer must be given for a model whose last nn.Linear does not give its outputs, got None: "
                    f"{name!r} acts after or beside {self.name!r}"
                )

    @abc.abstractmethod
    def _begin(self) -> None:
        """Prepare the sums, once the layer is known."""

    @abc.abstractmethod
    def _collect(self, call: Call, output: Tensor, hessians: Hessians, *, gives: bool) -> None:
        """Add a batch; ``gives`` tells whether the layer's outputs at every position are one block of the outputs."""

    def _pulled(self, call: Call, output: Tensor, hessians: Hessians) -> Tensor:
        """The factor of an example's Hessian pulled back to the layer's outputs, ``(N, ..., K, P R)``, in float64."""
        vectors, _ = hessians.columns()
        try:
            pulled = [torch.autograd.grad(output, call.leaf, vector, retain_graph=True)[0] for vector in vectors]
        except RuntimeError as error:
            if "used in the graph" not in str(error) and "require grad" not in str(error):
                raise
            raise ValueError(
                f"last_layer must be a layer that the model's outputs depend on, got {self.name!r}"
            ) from None
        return torch.stack(pulled, dim=-1).double()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles.values():
            handle.remove()

    def _capture(
        self, name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor:
        """Cut the graph behind the layer, so that only the layers after it are differentiated."""
        leaf = output.detach().requires_grad_()
        returned = leaf.clone()  # unlike a leaf, the clone may be changed in place
        self._calls.append(Call(name, first_argument(args, kwargs).detach(), leaf, returned))
        return returned


def _gives(call: Call, output: Tensor) -> bool:
    """Whether outputs are those of a layer, or a view of them, and were not changed in place."""
    return output._version == 0 and (output is call.returned or output._base is call.returned)


class LastLayerSum(LastLayer):
    """``sum_n J_n' H_n J_n`` over the weight and the bias of one linear layer, in float64.

    For an example whose layer has the inputs ``a`` (with a 1 for the bias) and the Hessian ``H`` at its outputs, the
    term is the Kronecker product of ``H`` and ``a a'``; no gradient of a weight is formed.
    """

    structure = "last_layer"
    needs_factor = True
    matrix: Tensor

    def result(self) -> Tensor:
        """The matrix ``(D, D)``, with the layer's weights numbered tensor by tensor as in
        :class:`bayesadam.DenseGaussian`.
        """
        return self.matrix

    def _begin(self) -> None:
        outputs, width = self.layer.weight.shape
        size = outputs * (width + len(self.names) - 1)
        if size > MAX_WEIGHTS:
            raise too_large(self.structure, size, "'last_layer_kron' or 'diagonal'")
        self.matrix = torch.zeros(size, size, dtype=torch.float64, device=self.layer.weight.device)

    def _collect(self, call: Call, output: Tensor, hessians: Hessians, *, gives: bool) -> None:
        features = call.features.double()
        if gives:
            features, factor = features.flatten(0, -2), hessians.factor().flatten(0, 1).double()
        else:
            factor = self._pulled(call, output, hessians)
            if call.leaf.ndim > 2:
                self._add_sums(features, factor)
                return
        # Features ``(N, F)``, and factors ``(N, K, R)`` of the Hessian at the layer's outputs.
        outputs, width = self.layer.weight.shape
        hessian = factor @ factor.mT
        biases = outputs * width if len(self.names) > 1 else None
        for i in range(outputs):
            for j in range(i + 1):
                weighted = features * hessian[:, i, j, None]
                block, total = weighted.T @ features, weighted.sum(0)
                for k, m in {(i, j), (j, i)}:
                    rows = slice(k * width, (k + 1) * width)
                    self.matrix[rows, m * width : (m + 1) * width] += block
                    if biases is not None:
                        self.matrix[rows, biases + m] += total
                        self.matrix[biases + m, rows] += total
                        self.matrix[biases + k, biases + m] += hessian[:, i, j].sum()

    def _add_sums(self, features: Tensor, factor: Tensor) -> None:
        """Add features ``(N, ..., F)`` at several positions, whose gradients are summed before they are squared."""
        features, factor = features.flatten(1, -2), factor.flatten(1, -3)
        pulled = [torch.einsum("npkr,npf->nrkf", factor, features).flatten(2)]
        if len(self.names) > 1:
            pulled.append(factor.sum(1).mT)
        vectors = torch.cat(pulled, dim=-1).flatten(0, 1)
        self.matrix.addmm_(vectors.T, vectors)
