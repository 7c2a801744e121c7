"""The gradients of all members of an ensemble at once, from weights that are stacked in one tensor."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
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
from bayesadam.population.losses import prepare_for_vmap
from bayesadam.population.modules import signature

_TOLERANCE = 1e-3
"""Largest difference of gradients that counts as rounding, relative to the largest gradient."""


class Together:
    """Networks of one architecture whose gradients are computed at once.

    Every trained parameter of the networks becomes a view of one tensor ``(members, *shape)``, as do buffers of batch
    norm layers and other tensors that differ between the networks. What writes to a network, such as an optimiser or a
    state dict that is loaded, so writes where the gradients are computed. For plain perceptrons they have the closed
    form of populations, and everything else is mapped by ``torch.func.vmap``.

    Args:
        models: The networks, whose trained parameters are of one dtype.
        loss: Their loss.
        generators: Their random numbers.
    """

    def __init__(self, models: Sequence[nn.Module], loss: Loss, generators: Generators) -> None:
        self._models, self._loss, self._generators = models, loss, generators
        self._template = copy.deepcopy(models[0]).train()
        prepare_for_vmap(self._template)
        self._parameters: dict[str, Sequence[Tensor]] = {}
        self._weights: dict[str, Tensor] = {}
        self._constants: dict[str, Tensor] = {}
        written = _buffers_of_batch_norm(self._template)
        for name, *tensors in _zipped(models):
            is_trained = tensors[0].requires_grad
            if is_trained or name in written or _differ(tensors):
                stacks = self._weights if is_trained else self._constants
                stacks[name] = torch.stack([tensor.detach() for tensor in tensors])
                for tensor, row in zip(tensors, stacks[name], strict=True):
                    tensor.data = row
            if is_trained:
                self._parameters[name] = tensors
        self._gradients = {name: torch.zeros_like(weights) for name, weights in self._weights.items()}
        layers = plain_layers(self._template) or []
        draws = any(isinstance(layer, nn.Dropout) and layer.p > 0 for _, layer in layers)
        has_constants = any(not p.requires_grad for p in self._template.parameters())
        self._layers = None if draws or has_constants else layers
        self._views, self._scratch = {name: each.unsqueeze(1) for name, each in self._weights.items()}, Scratch()
        self._draws = False

    def backward(self, batch: Minibatch) -> Tensor:
        """Set the gradients of all members, and add to those of the loss's own parameters; return the losses of the
        members, ``(members,)``.
        """
        x, _ = batch.stacked(len(self._models))
        if self._layers and x.ndim == 3:
            with torch.no_grad():
                trace = Perceptron(self._layers, self._views, x, scratch=self._scratch)
            losses, slope = self._losses(trace.output[:, 0], batch)
            trace.backward(slope[:, None], into=self._gradients)
            return losses
        leaves = [weights.detach().requires_grad_() for weights in self._weights.values()]
        with _EachAlone(self._generators) if self._draws else nullcontext():
            outputs = self._mapped(dict(zip(self._weights, leaves, strict=True)), batch)
        losses, slope = self._losses(outputs, batch)
        gradients = torch.autograd.grad(outputs, leaves, slope, materialize_grads=True)
        torch._foreach_copy_(list(self._gradients.values()), gradients)
        return losses

    def fault(self, batch: Minibatch) -> str | None:
        """Why the gradients cannot be computed at once; ``None`` if they can.

        In evaluation mode they must be those of the networks alone. A pass in training mode finds out whether it draws
        random numbers. Neither changes the networks or their generators.
        """
        is_used: dict[str, bool] = {}
        state, states = random_state(), list(self._generators.states)
        before = {name: value.clone() for name, value in self._constants.items()}
        try:
            for model in (self._template, *self._models):
                model.eval()
            InTurn(self._models, self._loss, self._generators).backward(batch)
            is_used = {name: own[0].grad is not None for name, own in self._parameters.items()}
            alone = {name: torch.stack([_gradient(p) for p in own]) for name, own in self._parameters.items()}
            largest = max(float(each.nan_to_num(0.0, 0.0, 0.0).abs().amax()) for each in alone.values())
            try:
                with without_fast_attention(), warnings.catch_warnings():
                    warnings.filterwarnings("error", "There is a performance drop")  # vmap loops over the members
                    self.backward(batch)
                    together = {name: each.clone() for name, each in self._gradients.items()}
                    self._template.train()
                    self.backward(batch)
            except Exception as error:  # vmap raises many kinds of errors
                return str(error).strip().split("\n")[0]
            if any(((together[n] - alone[n]).abs() > _TOLERANCE * largest).any() for n in alone):
                return "torch.func.vmap computes other gradients"
            self._draws = any(not torch.equal(*pair) for pair in zip(random_state(), state, strict=True))
            return None
        finally:
            for name, used in is_used.items():
                for parameter, gradient in zip(self._parameters[name], self._gradients[name], strict=True):
                    parameter.grad = gradient if used else None
            for model in self._models:
                model.train()
            for name, value in before.items():
                self._constants[name].copy_(value)
            self._generators.states = states

    def _mapped(self, weights: Mapping[str, Tensor], batch: Minibatch) -> Tensor:
        """Outputs of all networks by ``vmap``, ``(members, M, ...)``."""

        def run(tensors: dict[str, Tensor], x: Tensor) -> Any:
            return functional_call(self._template, tensors, (x,))

        mapped = vmap(run, (0, None if batch.is_shared else 0), randomness="different")
        # Of the kernels of attention, vmap maps only those of GPUs and the general one.
        with nullcontext() if batch.x.is_cuda else sdpa_kernel(SDPBackend.MATH):
            outputs: Tensor = mapped({**weights, **self._constants}, batch.x)
        return outputs

    def _losses(self, outputs: Tensor, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Losses ``(members,)``, and the derivative of each by the outputs of its member.

        Where they are means over equally many data points, their mean is computed at once.
        """
        outputs, (_, y) = outputs.detach().requires_grad_(), batch.stacked(len(outputs))
        likelihood, mean = getattr(self._loss, "__self__", None), None
        if isinstance(likelihood, Likelihood) and _is_mean(likelihood) and not outputs.is_cuda:
            targets = y.flatten(0, 1)
            mean = self._loss(outputs.flatten(0, 1), targets) if likelihood.counted(targets) is None else None
        if mean is not None and math.isfinite(mean.item()):
            losses = mean.expand(len(outputs))
        else:
            losses = torch.stack([self._loss(output, batch.of(member)[1]) for member, output in enumerate(outputs)])
        torch.autograd.backward(losses.sum())
        slope: Any = outputs.grad
        return losses.detach(), slope


def stack(models: Sequence[nn.Module], loss: Loss, generators: Generators, batch: Minibatch) -> Together | str:
    """Networks whose gradients are computed at once; or why they cannot be, in which case nothing has changed."""
    if any(signature(model) != signature(models[0]) for model in models):
        return "the networks have different architectures"
    if len({p.dtype for p in models[0].parameters() if p.requires_grad}) > 1:
        return "their trained parameters have several dtypes"
    together = Together(models, loss, generators)
    return together.fault(batch) or together


@contextmanager
def without_fast_attention() -> Iterator[None]:
    """Context without the kernels of whole layers of attention, which PyTorch has for evaluation alone: ``vmap`` cannot
    map them, and their operations are not counted.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


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


def _buffers_of_batch_norm(model: nn.Module) -> set[str]:
    """Names of the buffers that layers write in a forward pass."""
    return {
        f"{place}.{name}".lstrip(".")
        for place, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for name, _ in module.named_buffers(recurse=False)
    }


def _zipped(models: Sequence[nn.Module]) -> Any:
    """Name and tensors of each parameter and buffer of networks of one architecture."""
    named = [dict([*model.named_parameters(), *model.named_buffers()]) for model in models]
    return [(name, *(tensors[name] for tensors in named)) for name in named[0]]


def _differ(tensors: Sequence[Tensor]) -> bool:
    return any(not torch.equal(tensor, tensors[0]) for tensor in tensors)
