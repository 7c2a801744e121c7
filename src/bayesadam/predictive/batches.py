"""The inputs of a prediction: one batch or many, tensors or collections of them, in chunks of rows."""

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
    """The batches, and whether the inputs are a single one."""
    single = isinstance(inputs, Tensor | Mapping | tuple)
    return [inputs] if single else inputs, single


def repeatable(inputs: Any) -> Any:
    """The same inputs, the batches of a loader kept: to be gone through more than once, in one order."""
    batches, single = as_batches(inputs)
    return inputs if single else list(batches)


def groups(batches: Iterable[Any], device: torch.device, single: bool, limit: int) -> Iterator[list[Any]]:
    """Batches without their targets, on the device, collected until they have ``limit`` bytes."""
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
    """The error for a loader without batches."""
    return ValueError("inputs must have at least one batch, got an empty loader")


def arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model is called with: a dict by names, a tuple in order, anything else as the only argument."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return batch if isinstance(batch, tuple) else (batch,), {}


def call(model: nn.Module, batch: Any, output: Output | None, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
    """The output tensor of the model, with other tensors in the place of its own if given.

    Raises:
        TypeError: There is none.
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
    """The rows of a batch, of which parts can be taken.

    Which tensors have rows is said once, by the whole batch: in a part of it, others may be as long by chance.

    Args:
        batch: The first tensor that has an axis has the rows; tensors of another length belong to all of them.

    Attributes:
        batch: What a model is called with.
        count: Number of rows.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        tensors = tensors_of(batch)
        self.count = next((len(tensor) for tensor in tensors if tensor.ndim), 1)
        self._shared = [tensor.ndim == 0 or len(tensor) != self.count for tensor in tensors]

    def part(self, start: int, stop: int) -> Rows:
        """Some of the rows."""
        part = copy(self)
        part.batch = self._map(lambda tensor: tensor[start:stop])
        part.count = len(range(self.count)[start:stop])
        return part

    def select(self, numbers: Tensor) -> Rows:
        """The rows of these numbers."""
        part = copy(self)
        part.batch = self._map(lambda tensor: tensor[numbers.to(tensor.device)])
        part.count = len(numbers)
        return part

    def examples(self) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
        """For ``vmap``: the tensors that have rows, and a function from one row of each to a batch of it."""
        tensors = zip(tensors_of(self.batch), self._shared, strict=True)

        def example(rows: list[Tensor]) -> Any:
            left = iter(rows)
            return self._map(lambda _: next(left).unsqueeze(0))

        return [tensor for tensor, shared in tensors if not shared], example

    def _map(self, function: Callable[[Tensor], Tensor]) -> Any:
        shared = iter(self._shared)
        return map_tensors(self.batch, lambda tensor: tensor if next(shared) else function(tensor))


class Chunked:
    """A function of the rows of a batch, in chunks that are halved for good when memory runs out.

    Args:
        function: Gives tensors that have the rows along their first axis.
        rows: Of a chunk, to start with; ``None``: all.
    """

    def __init__(self, function: Callable[[Rows], tuple[Tensor, ...]], rows: int | None) -> None:
        self.function = function
        self.rows = rows

    def __call__(self, batch: Any) -> tuple[Tensor, ...]:
        """What the function gives for the whole batch."""
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
    """Whether the error says so; on the CPU it is an ordinary one, whose words depend on the system."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(part in str(error) for part in words)


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; after, every module is in the mode that it was in, and has gone there by its own ``train``.

    Modules that have one may change their tensors in it, merge weights say, and then back to rounding only: their
    tensors are kept.
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
    """The posterior's ``draws``, with the model in eval mode.

    What modules make of their weights when they go into eval mode (merged or cached ones) they make of every sample.
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
    """Refuse modules that compute with other tensors, made of their weights, in eval mode: derivatives are not seen.

    Args:
        model: In eval mode.
        names: Of the weights that matter.

    Raises:
        ValueError: A module that has any of them changes its tensors when its mode changes.
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
    """Modules with a ``train`` of their own, which may do more than to set a mode."""
    return [m for m in model.modules() if getattr(m.train, "__func__", None) is not nn.Module.train]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """A module's own parameters, buffers, and other tensors that it has as attributes."""
    named = {**vars(module), **module._parameters, **module._buffers}
    return {name: value.detach() for name, value in named.items() if isinstance(value, Tensor)}


def tensors_of(batch: Any) -> list[Tensor]:
    """The tensors of a batch, in the order of :func:`map_tensors`."""
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else [batch]
    return [value for value in values if isinstance(value, Tensor)]


def map_tensors(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The batch with the function applied to its tensors."""

    def apply(value: Any) -> Any:
        return function(value) if isinstance(value, Tensor) else value

    if isinstance(batch, Mapping):
        return {key: apply(value) for key, value in batch.items()}
    return tuple(map(apply, batch)) if isinstance(batch, tuple) else apply(batch)
