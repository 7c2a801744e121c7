"""The gradients of all members of an ensemble at once, from weights that are stacked in one tensor."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from bayesadam.curvature.totals import Scratch
from bayesadam.ensembles.in_turn import Generators, InTurn, Loss, random_state
from bayesadam.ensembles.minibatches import Minibatch
from bayesadam.likelihoods import Likelihood
from bayesadam.population import Perceptron, plain_layers
from bayesadam.population.layout import Layout
from bayesadam.population.losses import prepare_for_vmap
from bayesadam.population.modules import signature

_TOLERANCE = 1e-3
"""Largest difference of gradients that counts as rounding, relative to the largest gradient."""


class Together:
    """Networks of one architecture whose gradients are computed at once.

    The trained parameters of the networks become views of one tensor ``(members, numel)``. Buffers of batch norm
    layers, and other tensors that differ between the networks, become views of a tensor each. What writes to a network,
    such as an optimiser or a state dict that is loaded, so writes where the gradients are computed. For plain
    perceptrons they have the closed form of populations, and everything else is mapped by ``torch.func.vmap``.

    Args:
        models: The networks, whose trained parameters are of one dtype.
        loss: Their loss.
        generators: Their random numbers.
    """

    def __init__(self, models: Sequence[nn.Module], loss: Loss, generators: Generators) -> None:
        self._models, self._loss, self._generators = models, loss, generators
        self._template = copy.deepcopy(models[0]).train()
        prepare_for_vmap(self._template)
        self._layout = Layout({name: p.shape for name, p in models[0].named_parameters() if p.requires_grad})
        self._trained = [[p for p in model.parameters() if p.requires_grad] for model in models]
        self._weights = torch.stack([torch.cat([p.detach().flatten() for p in own]) for own in self._trained])
        self._gradients = torch.zeros_like(self._weights)
        for parameters, views in self._rows(self._weights):
            for parameter, view in zip(parameters, views, strict=True):
                parameter.data = view
        self._constants = self._stacked_constants()
        layers = plain_layers(self._template) or []
        draws = any(isinstance(layer, nn.Dropout) and layer.p > 0 for _, layer in layers)
        has_constants = any(not p.requires_grad for p in self._template.parameters())
        self._layers = None if draws or has_constants else layers
        self._views, self._scratch = self._layout.split(self._weights[:, None]), Scratch()
        self._draws = False

    def backward(self, batch: Minibatch) -> Tensor:
        """Set the gradients of all members, and add to those of the loss's own parameters; return the losses of the
        members, ``(members,)``.
        """
        x, _ = batch.stacked(len(self._models))
        if self._layers and x.ndim == 3:
            with torch.no_grad():
                trace = Perceptron(self._layers, self._views, x, scratch=self._scratch)
            outputs = trace.output[:, 0].requires_grad_()
            losses = self._losses(outputs, batch)
            torch.autograd.backward(losses.sum())
            signal: Any = outputs.grad
            trace.backward(signal[:, None], into=self._gradients[:, None])
            return losses.detach()
        weights = self._weights.detach().requires_grad_()
        with _EachAlone(self._generators) if self._draws else nullcontext():
            outputs = self._mapped(weights, batch)
        losses = self._losses(outputs, batch)
        torch.autograd.backward(losses.sum())
        gradients: Any = weights.grad
        self._gradients.copy_(gradients)
        return losses.detach()

    def fault(self, batch: Minibatch) -> str | None:
        """Why the gradients cannot be computed at once; ``None`` if they can.

        In evaluation mode they must be those of the networks alone. A pass in training mode finds out whether it draws
        random numbers. Neither changes the networks or their generators.
        """
        is_used: list[bool] = []
        state, states = random_state(), list(self._generators.states)
        fast = torch.backends.mha.get_fastpath_enabled()
        before = {name: value.clone() for name, value in self._constants.items()}
        try:
            torch.backends.mha.set_fastpath_enabled(False)  # vmap cannot map it, and it is for evaluation only
            for model in (self._template, *self._models):
                model.eval()
            InTurn(self._models, self._loss, self._generators, batch.of(0)[0]).backward(batch)
            is_used = [parameter.grad is not None for parameter in self._trained[0]]
            alone = torch.stack([torch.cat([_gradient(p).flatten() for p in own]) for own in self._trained])
            rounding = _TOLERANCE * float(alone.nan_to_num(0.0, 0.0, 0.0).abs().amax())
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("error", "There is a performance drop")  # vmap loops over the members
                    self.backward(batch)
                    gradients = self._gradients.clone()
                    self._template.train()
                    self.backward(batch)
            except Exception as error:  # vmap raises many kinds of errors
                return str(error).strip().split("\n")[0]
            if ((gradients - alone).abs() > rounding).any():
                return "torch.func.vmap computes other gradients"
            self._draws = any(not torch.equal(*pair) for pair in zip(random_state(), state, strict=True))
            return None
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for model, (parameters, views) in zip(self._models, self._rows(self._gradients), strict=True):
                model.train()
                for parameter, view, used in zip(parameters, views, is_used, strict=True):
                    parameter.grad = view if used else None
            for name, value in before.items():
                self._constants[name].copy_(value)
            self._generators.states = states

    def _mapped(self, weights: Tensor, batch: Minibatch) -> Tensor:
        """Outputs of all networks by ``vmap``, ``(members, M, ...)``."""

        def run(tensors: dict[str, Tensor], x: Tensor) -> Any:
            return functional_call(self._template, tensors, (x,))

        tensors = {**self._layout.split(weights), **self._constants}
        mapped = vmap(run, (0, None if batch.is_shared else 0), randomness="different")
        # Of the kernels of attention, vmap maps only those of GPUs and the general one.
        with nullcontext() if weights.is_cuda else sdpa_kernel(SDPBackend.MATH):
            outputs: Tensor = mapped(tensors, batch.x)
        return outputs

    def _losses(self, outputs: Tensor, batch: Minibatch) -> Tensor:
        """Losses ``(members,)``. Where they are means over equally many data points, their mean is computed at once."""
        likelihood = getattr(self._loss, "__self__", None)
        if isinstance(likelihood, Likelihood) and _is_mean(likelihood) and not outputs.is_cuda:
            _, y = batch.stacked(len(outputs))
            targets = y.flatten(0, 1)
            if likelihood.counted(targets) is None:
                mean = self._loss(outputs.flatten(0, 1), targets)
                if math.isfinite(mean.item()):
                    return mean.expand(len(outputs))
        return torch.stack([self._loss(output, batch.of(member)[1]) for member, output in enumerate(outputs)])

    def _stacked_constants(self) -> dict[str, Tensor]:
        """Tensors that are not trained, and are not the same in all networks."""
        written = {
            f"{place}.{name}".lstrip(".")
            for place, module in self._template.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
            for name, _ in module.named_buffers(recurse=False)
        }
        stacked = {}
        for name, *tensors in _zipped(self._models):
            if name not in self._layout.shapes and (name in written or _differ(tensors)):
                stacked[name] = torch.stack([tensor.detach() for tensor in tensors])
                for tensor, row in zip(tensors, stacked[name], strict=True):
                    tensor.data = row
        return stacked

    def _rows(self, flat: Tensor) -> Any:
        """Pairs of the trained parameters of a network and their parts of its row, in their shapes."""
        by_name = self._layout.split(flat)
        return zip(self._trained, zip(*by_name.values(), strict=True), strict=True)


def stack(models: Sequence[nn.Module], loss: Loss, generators: Generators, batch: Minibatch) -> Together | str:
    """Networks whose gradients are computed at once; or why they cannot be, in which case nothing has changed."""
    if any(signature(model) != signature(models[0]) for model in models):
        return "the networks have different architectures"
    if len({p.dtype for p in models[0].parameters() if p.requires_grad}) > 1:
        return "their trained parameters have several dtypes"
    together = Together(models, loss, generators)
    return together.fault(batch) or together


class _EachAlone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context in which random numbers of all members are drawn for each of them by its own generator.

    ``vmap`` draws them at once, with the members along the first axis.
    """

    def __init__(self, generators: Generators) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generators = generators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, members = kwargs or {}, len(self._generators.states)
        first: Any = args[0] if args else None
        if torch.Tag.nondeterministic_seeded not in func.tags or not _has_axis(first, members):
            return func(*args, **kwargs)
        results = []
        for member in range(members):
            with self._generators.of(member):
                results.append(func(first[member] if isinstance(first, Tensor) else first[1:], *args[1:], **kwargs))
        if func._schema.is_mutable:
            return first
        return tree_map(lambda *each: torch.stack(each), *results)


def _has_axis(first: Any, members: int) -> bool:
    """Whether the first argument of an operation, a tensor or a shape, begins with an axis for the members."""
    shape = first.shape if isinstance(first, Tensor) else first
    return isinstance(shape, list | torch.Size) and len(shape) > 0 and shape[0] == members


def _is_mean(likelihood: Likelihood) -> bool:
    """Whether the loss of a likelihood is the library's: the mean over the data points that count."""
    kind = type(likelihood)
    return all(method.__module__.startswith("bayesadam.") for method in (kind.nll, kind.counted))


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _zipped(models: Sequence[nn.Module]) -> Any:
    """Name and tensors of each parameter and buffer of networks of one architecture."""
    named = [dict([*model.named_parameters(), *model.named_buffers()]) for model in models]
    return [(name, *(tensors[name] for tensors in named)) for name in named[0]]


def _differ(tensors: Sequence[Tensor]) -> bool:
    return any(not torch.equal(tensor, tensors[0]) for tensor in tensors)
