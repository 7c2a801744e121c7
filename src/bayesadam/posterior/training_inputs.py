"""The inputs of a model in training: the number of examples per step, and inputs for batch norm statistics."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesadam.posterior.wrappers import unwrapping

ROWS = 512
"""Number of training inputs that are kept; batch norm statistics hardly change with more."""
BYTES = 2**27
"""Largest size in bytes of the inputs that are kept."""

Batch = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a model."""


class TrainingInputs:
    """A forward hook that counts the examples of a model's training passes, and keeps the latest inputs.

    A training pass is one in training mode, with gradients, while the optimiser's weights hold a sample. Its examples
    are counted when a gradient first reaches its outputs, so that a pass without a backward pass does not count, and if
    the outputs have one row for each of them: the first tensor of the output must have as many rows as the first tensor
    of the input, and at most two axes. Otherwise it is not clear over what the loss is averaged (the tokens of
    sequences, the pixels of images), and the pass makes the count unknown.

    Inputs are kept only for models with batch norm layers, all of which are in training mode. They are copied, since
    loops may overwrite them. In a copy or a pickle of the model the hook does nothing.

    Args:
        is_training: Function without arguments that tells whether the optimiser's weights hold a sample.
        see: Function that is called with the number of examples of every training pass, or None if it is not known.
    """

    def __init__(
        self, is_training: Callable[[], bool] | None = None, see: Callable[[int | None], None] | None = None
    ) -> None:
        self._is_training = is_training or (lambda: False)
        self._see = see or (lambda rows: None)
        self._rows: float | None = 0.0
        self._kept: deque[tuple[int, int, Batch]] = deque()
        self._layers: list[_BatchNorm] = []
        self._handle: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def watch(self, model: nn.Module) -> None:
        """Follow a model's passes from now on, and no longer those of the model before."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = model.register_forward_hook(self, with_kwargs=True)
        self._layers = normalized(model)
        *_, inner = unwrapping(model)
        _KNOWN[inner] = self

    def take_rows(self) -> float | None:
        """Number of examples since the last call, which are then forgotten; None if it is not known."""
        found, self._rows = self._rows, 0.0
        return found

    def inputs(self) -> Any:
        """The inputs that were kept, in a form that ``predict`` takes; None if there are none."""
        if not self._kept:
            return None
        args, kwargs = zip(*(batch for _, _, batch in self._kept), strict=True)
        if kwargs[0]:
            return {name: torch.cat([found[name] for found in kwargs]) for name in kwargs[0]}
        joined = tuple(torch.cat(parts) for parts in zip(*args, strict=True))
        return joined[0] if len(joined) == 1 else joined

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Handle a forward pass, after it."""
        if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled() and self._is_training()):
            return
        first = next(_tensors((args, kwargs)), None)
        result = next(_tensors(output, at_least=1), None)
        if first is None or result is None or first.ndim == 0 or len(first) != len(result) or result.ndim > 2:
            rows = None
        else:
            rows = len(first)
        self._see(rows)
        self._count_after_backward(output, rows)
        if self._layers and all(layer.training for layer in self._layers):
            self._keep((args, kwargs))

    def _count_after_backward(self, output: Any, rows: int | None) -> None:
        """Count the examples of a pass once, when a gradient reaches one of its outputs."""
        uncounted = [rows]

        def count(*_: Any) -> None:
            if uncounted:
                found = uncounted.pop()
                self._rows = None if self._rows is None or found is None else self._rows + found

        nodes = {tensor.grad_fn for tensor in _tensors(output) if tensor.grad_fn is not None}
        for node in nodes:  # not on the tensors, which could not be saved without a warning then
            node.register_prehook(count)
        if not nodes:  # the outputs are inside of other objects
            count()

    def _keep(self, batch: Batch) -> None:
        """Copy a batch, of which all arguments must be tensors with the same number of rows."""
        values = [*batch[0], *batch[1].values()]
        count = len(values[0]) if values and isinstance(values[0], Tensor) and values[0].ndim else 0
        alike = all(isinstance(value, Tensor) and value.ndim and len(value) == count for value in values)
        if not count or not alike or (batch[0] and batch[1]):
            return
        size = math.ceil(sum(value.numel() * value.element_size() for value in values) / count)
        rows = min(count, ROWS, BYTES // max(size, 1))
        if rows == 0:
            return
        args = tuple(value[:rows].detach().clone() for value in batch[0])
        kwargs = {name: value[:rows].detach().clone() for name, value in batch[1].items()}
        if self._kept and _form(self._kept[-1][2]) != _form((args, kwargs)):
            self._kept.clear()
        self._kept.append((rows, rows * size, (args, kwargs)))
        while sum(kept for kept, _, _ in self._kept) > ROWS or sum(kept for _, kept, _ in self._kept) > BYTES:
            self._kept.popleft()


_KNOWN: weakref.WeakKeyDictionary[nn.Module, TrainingInputs] = weakref.WeakKeyDictionary()
"""The hook of each innermost model that is followed."""


def inputs_of(model: nn.Module) -> Any:
    """The training inputs that are known of a model, in a form that ``predict`` takes; None if there are none."""
    *_, inner = unwrapping(model)
    known = _KNOWN.get(inner)
    return None if known is None else known.inputs()


def normalized(model: nn.Module) -> list[_BatchNorm]:
    """List the batch norm layers that have running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


def _form(batch: Batch) -> list[Any]:
    """Return the properties that batches must share if they are to be joined."""
    args, kwargs = batch
    return [(name, v.shape[1:], v.dtype, v.device) for name, v in [*enumerate(args), *kwargs.items()]]


def _tensors(value: Any, at_least: int = 0) -> Iterator[Tensor]:
    """Yield the tensors of nested collections in order, if they have at least ``at_least`` axes."""
    if isinstance(value, Tensor):
        if value.ndim >= at_least:
            yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _tensors(entry, at_least)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _tensors(entry, at_least)
