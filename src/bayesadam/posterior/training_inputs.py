"""The latest inputs of a model in training, for batch norm statistics."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten

from bayesadam.posterior.wrappers import innermost

ROWS = 512
"""Number of training inputs that are kept; batch norm statistics hardly change with more."""
BYTES = 2**27
"""Largest size in bytes of the inputs that are kept."""

Batch = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a model."""


class TrainingInputs:
    """A forward hook that keeps the latest inputs of a model's training passes.

    A training pass is one in training mode, with gradients, while the optimiser's weights hold a sample. Inputs are
    kept only for models with batch norm layers, all of which are in training mode. They are copied, since loops may
    overwrite them. In a copy or a pickle of the model the hook does nothing.

    Args:
        optimizer: Function without arguments that returns the optimiser, or ``None``.

    Attributes:
        fixed: Whether all batch norm layers were in evaluation mode in all training passes; None before the first one.
    """

    def __init__(self, optimizer: Callable[[], Any] = lambda: None) -> None:
        self.fixed: bool | None = None
        self._optimizer = optimizer
        self._kept: deque[tuple[int, int, list[Tensor]]] = deque()
        self._spec: Any = None
        self._layers: list[_BatchNorm] = []
        self._handle: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def watch(self, model: nn.Module) -> None:
        """Follow a model's passes from now on, in place of an earlier hook on it."""
        inner = innermost(model)
        earlier = _KNOWN.get(inner)
        if earlier is not None and earlier._handle is not None:
            earlier._handle.remove()
        self._layers = normalized(model)
        if self._layers:
            self._handle = model.register_forward_hook(self, with_kwargs=True)
            _KNOWN[inner] = self

    def inputs(self) -> Any:
        """The inputs that were kept, in a form that ``predict`` takes; None if there are none."""
        if not self._kept:
            return None
        joined = [torch.cat(parts) for parts in zip(*(tensors for _, _, tensors in self._kept), strict=True)]
        args, kwargs = tree_unflatten(joined, self._spec)
        if kwargs:
            return kwargs
        return args[0] if len(args) == 1 and isinstance(args[0], Tensor) else args

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Handle a forward pass, after it."""
        optimizer = self._optimizer()
        if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()) or optimizer is None:
            return
        if optimizer.param_groups[0]["weights"] == "mean":
            return
        changing = [layer.training for layer in self._layers]
        self.fixed = self.fixed is not False and not any(changing)
        if all(changing):
            self._keep((args, kwargs))

    def _keep(self, batch: Batch) -> None:
        """Copy a batch, of which all arguments must be tensors with the same number of rows, or collections of them."""
        tensors, spec = tree_flatten(batch)
        count = len(tensors[0]) if tensors and isinstance(tensors[0], Tensor) and tensors[0].ndim else 0
        alike = all(isinstance(value, Tensor) and value.ndim and len(value) == count for value in tensors)
        if not count or not alike or (batch[0] and batch[1]):
            return
        size = math.ceil(sum(value.numel() * value.element_size() for value in tensors) / count)
        rows = min(count, ROWS, BYTES // max(size, 1))
        if rows == 0:
            return
        if self._kept and (spec != self._spec or _form(self._kept[-1][2]) != _form(tensors)):
            self._kept.clear()
        self._spec = spec
        self._kept.append((rows, rows * size, [value[:rows].detach().clone() for value in tensors]))
        while sum(kept for kept, _, _ in self._kept) > ROWS or sum(kept for _, kept, _ in self._kept) > BYTES:
            self._kept.popleft()


_KNOWN: weakref.WeakKeyDictionary[nn.Module, TrainingInputs] = weakref.WeakKeyDictionary()
"""The hook of each innermost model that is followed."""


def inputs_of(model: nn.Module) -> Any:
    """The training inputs that are known of a model, in a form that ``predict`` takes; None if there are none."""
    inner = innermost(model)
    known = _KNOWN.get(inner)
    return None if known is None else known.inputs()


def statistics_are_fixed(model: nn.Module) -> bool:
    """Whether batch norm statistics are known not to depend on samples: all parameters up to the last such layer are
    frozen, or the optimiser was attached and the layers were in evaluation mode in training.
    """
    layers, known = normalized(model), _KNOWN.get(innermost(model))
    if not layers or (known is not None and known.fixed):
        return True
    modules = list(model.modules())
    before = modules[: modules.index(layers[-1]) + 1]
    return not any(p.requires_grad for module in before for p in module.parameters(recurse=False))


def normalized(model: nn.Module) -> list[_BatchNorm]:
    """List the batch norm layers that have running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


def _form(tensors: list[Tensor]) -> list[Any]:
    """Return the properties that batches must share if they are to be joined."""
    return [(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in tensors]
