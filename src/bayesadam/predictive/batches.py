"""Inputs of a prediction: one batch or many, of tensors or collections of them, divided into chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesadam.posterior import NetworkDistribution
from bayesadam.posterior.modes import quietly

Output = Callable[[Any], Tensor]


def as_batches(inputs: Any) -> tuple[Iterable[Any], bool]:
    """The batches of the inputs, and whether the inputs are a single batch."""
    single = isinstance(inputs, Tensor | Mapping | tuple)
    return [inputs] if single else inputs, single


def repeatable(inputs: Any) -> Any:
    """The same inputs in a form that can be iterated over repeatedly in one order; batches of a loader are kept."""
    batches, single = as_batches(inputs)
    return inputs if single else list(batches)


def groups(batches: Iterable[Any], device: torch.device, single: bool, limit: int) -> Iterator[list[Any]]:
    """Yield batches without their targets, on the device, collected until they have ``limit`` bytes."""
    group: list[Any] = []
    size = 0
    for batch in batches:
        if not single and isinstance(batch, list | tuple):
            batch = batch[0]
            if isinstance(batch, list):  # the default collate function makes lists of tuples
                batch = tuple(batch)
        group.append(map_tensors(batch, lambda tensor: tensor.to(device)))
        size += sum(t.numel() * t.element_size() for t in tensors_of(batch))
        if size >= limit:
            yield group
            group, size = [], 0
    if group:
        yield group


def no_batches() -> ValueError:
    """Make the error for a loader without batches."""
    return ValueError("inputs must have at least one batch, got an empty loader")


def arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments for a model: a dict by name, a tuple in order, anything else as the only
    argument.
    """
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return batch if isinstance(batch, tuple) else (batch,), {}


def call(model: nn.Module, batch: Any, output: Output | None, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
    """Call a model and return its output tensor, with other tensors in place of its own if they are given.

    Raises:
        TypeError: The model does not return a tensor.
    """
    args, kwargs = arguments(batch)
    result = model(*args, **kwargs) if tensors is None else functional_call(model, dict(tensors), args, kwargs)
    if output is not None:
        result = output(result)
    if not isinstance(result, Tensor):
        raise TypeError(
            "output must be given for a model that returns no tensor (output=lambda out: out.logits, say), "
            f"got {type(result).__name__}"
        )
    return result


class Rows:
    """The rows of a batch, which can be divided.

    The whole batch decides which of its tensors have rows, since in a part of it another tensor may have the same
    length by chance.

    Args:
        batch: A batch. The length of its first tensor with an axis is the number of rows; tensors of another length
            belong to all rows.

    Attributes:
        batch: The batch, as the model takes it.
        count: Number of rows.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        tensors = tensors_of(batch)
        self.count = next((len(tensor) for tensor in tensors if tensor.ndim), 1)
        self._shared = [tensor.ndim == 0 or len(tensor) != self.count for tensor in tensors]

    def part(self, start: int, stop: int) -> Rows:
        """The rows from ``start`` to ``stop``."""
        part = copy(self)
        part.batch = self._map(lambda tensor: tensor[start:stop])
        part.count = len(range(self.count)[start:stop])
        return part

    def select(self, numbers: Tensor) -> Rows:
        """The rows with these numbers."""
        part = copy(self)
        part.batch = self._map(lambda tensor: tensor[numbers.to(tensor.device)])
        part.count = len(numbers)
        return part

    def examples(self) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
        """The tensors that have rows, for ``vmap``, and a function that makes a batch of one row of each."""
        tensors = zip(tensors_of(self.batch), self._shared, strict=True)

        def example(rows: list[Tensor]) -> Any:
            left = iter(rows)
            return self._map(lambda _: next(left).unsqueeze(0))

        return [tensor for tensor, shared in tensors if not shared], example

    def _map(self, function: Callable[[Tensor], Tensor]) -> Any:
        shared = iter(self._shared)
        return map_tensors(self.batch, lambda tensor: tensor if next(shared) else function(tensor))


class Chunked:
    """A function of the rows of a batch that is called in chunks, which are halved permanently when memory runs out.

    Args:
        function: Function that returns tensors with the rows along their first axis.
        rows: Number of rows in the first chunk; ``None`` stands for all.
    """

    def __init__(self, function: Callable[[Rows], tuple[Tensor, ...]], rows: int | None) -> None:
        self.function = function
        self.rows = rows

    def __call__(self, batch: Any) -> tuple[Tensor, ...]:
        """Apply the function to the whole batch."""
        rows = Rows(batch)
        if self.rows is None:
            try:
                return self.function(rows)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self.rows = max(1, rows.count // 2)
        parts: list[tuple[Tensor, ...]] = []
        start = 0
        while start < rows.count or not parts:
            stop = min(start + self.rows, rows.count)
            try:
                parts.append(self.function(rows.part(start, stop)))
                start = stop
            except RuntimeError as error:
                if not is_out_of_memory(error) or self.rows == 1:
                    raise
                self.rows //= 2
        return tuple(map(torch.cat, zip(*parts, strict=True)))


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory has run out; on the CPU this is an ordinary error whose message depends on the system."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(part in str(error) for part in words)


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Context that sets the model to evaluation mode; afterwards every module is back in its mode, by its own
    ``train``.

    Modules with a ``train`` of their own may change their tensors, for example merge weights, and restore them only up
    to rounding. Their tensors are therefore saved and put back.
    """
    modes = [(module, module.training) for module in model.modules()]
    own = [t for m in _changing(model) for t in (*m.parameters(recurse=False), *m.buffers(recurse=False))]
    kept = [(tensor, tensor.detach().clone()) for tensor in own]
    try:
        model.eval()
        with quietly(model):
            yield
    finally:
        for module, mode in modes:  # parents first, whose children may be in another mode
            if module.training != mode:
                module.train(mode)
        for module, mode in modes:  # some never train, some have several parents
            module.training = mode
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)


@contextmanager
def draws_in_eval_mode(
    model: nn.Module, posterior: NetworkDistribution, seed: int = 0
) -> Iterator[Callable[[int | None], None]]:
    """Return the posterior's ``draws`` with the model in evaluation mode.

    Modules that merge or cache weights when they change to evaluation mode do so for every sample.
    """
    with in_eval_mode(model):
        if not _changing(model):
            with posterior.draws(model, seed) as put:
                yield put
            return
        model.train()
        with posterior.draws(model, seed) as put_weights:

            def put(number: int | None) -> None:
                model.train()
                put_weights(number)
                model.eval()

            try:
                yield put
            finally:
                model.train()


def check_weights_are_used(model: nn.Module, names: Iterable[str]) -> None:
    """Refuse modules that compute with merged or cached weights in evaluation mode, since derivatives cannot be taken.

    Args:
        model: The model in evaluation mode.
        names: Names of the weights by which derivatives are taken.

    Raises:
        ValueError: A module that has any of these weights changes its tensors when its mode changes.
    """
    parameters = dict(model.named_parameters())
    wanted = {id(parameters[name]) for name in names if name in parameters}
    changing = _changing(model)
    for path, module in model.named_modules() if changing else ():
        if module not in changing or wanted.isdisjoint(map(id, module.parameters())):
            continue
        module.train()
        before = {name: tensor.clone() for name, tensor in _tensors(module).items()}
        module.eval()
        after = _tensors(module)
        if before.keys() != after.keys() or any(not torch.equal(before[name], after[name]) for name in before):
            raise ValueError(
                "model must compute with its weights themselves in eval mode, but for method='monte_carlo', got module "
                f"{path!r} ({type(module).__name__}), which merges or caches them when its mode changes"
            )


def _changing(model: nn.Module) -> list[nn.Module]:
    """Modules with a ``train`` method of their own, which may change more than the mode."""
    return [m for m in model.modules() if getattr(m.train, "__func__", None) is not nn.Module.train]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """A module's own parameters, buffers and other tensors among its attributes."""
    named = {**vars(module), **module._parameters, **module._buffers}
    return {name: value.detach() for name, value in named.items() if isinstance(value, Tensor)}


def tensors_of(batch: Any) -> list[Tensor]:
    """The tensors of a batch, in the order of :func:`map_tensors`."""
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else [batch]
    return [value for value in values if isinstance(value, Tensor)]


def map_tensors(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to all tensors of a batch."""

    def apply(value: Any) -> Any:
        return function(value) if isinstance(value, Tensor) else value

    if isinstance(batch, Mapping):
        return {key: apply(value) for key, value in batch.items()}
    return tuple(map(apply, batch)) if isinstance(batch, tuple) else apply(batch)
