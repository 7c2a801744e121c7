"""Inputs of a prediction: one batch or many, of tensors or collections of them, divided into chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from bayesadam.modules.exclusive import in_eval_mode
from bayesadam.posterior import NetworkDistribution
from bayesadam.progress import progress_bar

PASS_ROWS, PASS_BYTES = 250, 2**18
"""Least number of rows of a pass by default on a CPU, and the size of their inputs up to which it has more."""
ON_ACCELERATORS = 16
"""Factor of both for other devices, where small passes are slow."""
ROWS, ROWS_WITH_POSITIONS = 512, 128
"""Number of rows of a pair in one batch: where a row is one vector of numbers, and where it has positions, as images
and sequences have, so that intermediate values of many rows leave the processor's caches.
"""
SAME = 0.02
"""Difference of outputs, relative to the largest, that is attributed to rounding."""


def as_batches(inputs: Any) -> tuple[Iterable[Any], bool]:
    """The batches of the inputs, and whether the inputs are a single batch."""
    if hasattr(inputs, "__array__") and not isinstance(inputs, Tensor):
        raise ValueError(
            f"inputs must be a tensor, a tuple, a dict or a loader of them, got {type(inputs).__name__} "
            "(torch.as_tensor makes a tensor of an array)"
        )
    single = isinstance(inputs, Tensor | Mapping | tuple)
    if not isinstance(inputs, Iterable):
        raise ValueError(
            f"inputs must be a tensor, a tuple, a dict or a loader of them, got {type(inputs).__name__} "
            "(a DataLoader makes batches of a data set)"
        )
    return [inputs] if single else inputs, single


def inputs_and_target(batch: Any) -> tuple[Any, Any]:
    """The inputs of a loader's batch, as a model takes them, and its target, or ``None`` if it has none.

    Every function of the library that takes a loader reads its batches by this one.

    Args:
        batch: A pair ``(inputs, targets)``; a dict, whose targets are its entry ``"labels"``, and which the model takes
            whole, as in the Trainer of Hugging Face; or inputs alone.

    Raises:
        ValueError: A list or tuple has more entries than a pair, or none.
    """
    if isinstance(batch, Mapping):
        return batch, batch.get("labels")
    if not isinstance(batch, list | tuple) or isinstance(batch, PackedSequence):
        return batch, None
    if len(batch) not in (1, 2):
        raise ValueError(
            "a batch must be inputs or a pair of inputs and targets (several inputs are a tuple or dict in it), "
            f"got {described(batch)}"
        )
    inputs, target = (*batch, None)[:2]
    return tuple(inputs) if isinstance(inputs, list) else inputs, target  # the default collate function makes lists


def described(value: Any) -> str:
    """The type of a value for messages, and those of its entries."""
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {[type(item).__name__ for item in value]}"
    return type(value).__name__


def repeatable(inputs: Any) -> Any:
    """The same inputs in a form that can be iterated over repeatedly in one order; batches of a loader are kept."""
    batches, single = as_batches(inputs)
    return inputs if single else list(batches)


def groups(batches: Iterable[Any], device: torch.device, single: bool, limit: int) -> Iterator[list[Rows]]:
    """Yield the rows of batches without their targets, on the device, collected until they have ``limit`` bytes."""
    group: list[Rows] = []
    size = 0
    for batch in batches:
        if not single:
            batch, _ = inputs_and_target(batch)
        group.append(Rows(placed(batch, device)))
        for value in tensors_of(batch):
            size += value.data.nbytes
        if size >= limit:
            yield group
            group, size = [], 0
    if group:
        yield group


def placed(batch: Any, device: torch.device | None) -> Any:
    """A batch on a device, with copies of inference tensors where these cannot be used, as in a graph."""
    if not isinstance(batch, Tensor):
        return map_tensors(batch, lambda tensor: placed(tensor, device))
    tensor = batch.to(device=device)
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor


def joined(parts: Sequence[Tensor], what: str, axis: int = 0) -> Tensor:
    """Join what belongs to several batches along the axis of their rows.

    Raises:
        ValueError: The other axes differ, as for sequences that are padded batch by batch.
    """
    if len(parts) == 1:
        return parts[0]
    shapes = [(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts]
    for shape in shapes:
        if shape != shapes[0]:
            raise ValueError(
                f"{what} of all batches must have one shape apart from their rows, got {shapes[0]} and {shape} "
                "(pad all sequences to one length)"
            )
    return torch.cat(list(parts), axis)


def no_batches() -> ValueError:
    """Make the error for a loader without batches."""
    return ValueError("inputs must have at least one batch, got an empty loader")


class Rows:
    """The rows of a batch, which can be divided.

    The whole batch decides which of its tensors have rows, since in a part of it another tensor may have the same
    length by chance.

    Args:
        batch: A batch. The length of its first tensor with an axis is the number of rows; tensors of another length
            belong to all rows. Packed sequences have a row for each sequence.

    Attributes:
        batch: The batch, as the model takes it.
        count: Number of rows; 1 if the batch has no tensor with an axis.
        default_batch_size: Number of rows of a pair of inputs and targets in one batch by default, see ``ROWS``.
        size: Number of rows in a part, as :meth:`divide` was told; ``None`` before.
        parts: The parts of the latest :meth:`divide`; none if a single part has all rows.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.count, self._has_rows, self._shared = 1, False, list[bool]()
        self.default_batch_size = ROWS
        length: int | None
        for value in tensors_of(batch):
            if isinstance(value, PackedSequence):
                length = int(value.batch_sizes[0])
            else:
                length = len(value) if value.ndim else None
            if length is not None and not self._has_rows:
                self.count, self._has_rows = length, True
            self._shared.append(length is None or length != self.count)
            if value.data.ndim > 2 or not value.data.is_floating_point():
                self.default_batch_size = ROWS_WITH_POSITIONS
        self.size: int | None = None
        self.parts: list[Rows] = []

    def part(self, start: int, stop: int) -> Rows:
        """The rows from ``start`` to ``stop``."""
        return self if start <= 0 and stop >= self.count else self._taken(slice(start, stop))

    def divide(self, size: int) -> None:
        """Set ``parts`` to all rows in parts of so many."""
        self.size, self.parts = size, []
        if size < self.count:
            self.parts = [self.part(start, start + size) for start in range(0, self.count, max(size, 1))]

    def select(self, numbers: Tensor) -> Rows:
        """The rows with these numbers."""
        return self._taken(numbers)

    def examples(self) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
        """The tensors that have rows, for ``vmap``, and a function that makes a batch of one row of each.

        Raises:
            RuntimeError: There are packed sequences.
        """
        tensors = []
        for value, shared in zip(tensors_of(self.batch), self._shared, strict=True):
            if isinstance(value, PackedSequence):
                raise RuntimeError("packed sequences cannot be mapped over")
            tensors += [] if shared else [value]

        def example(rows: list[Tensor]) -> Any:
            left = iter(rows)
            return self._map(lambda _: next(left).unsqueeze(0))

        return tensors, example

    def on(self, device: torch.device | None) -> Rows:
        """The same rows on a device, see :func:`placed`."""
        rows = copy(self)
        rows.batch, rows.size, rows.parts = placed(self.batch, device), None, []
        return rows

    def check(self, output: Tensor, *, counted: bool = False) -> None:
        """Raise ``ValueError`` if an output does not have as many rows.

        Args:
            output: An output for these rows.
            counted: Whether the number of rows is certain, even if the batch has no tensor with an axis.
        """
        if (counted or self._has_rows) and output.shape[:1] != (self.count,):
            raise ValueError(
                f"output must have the {self.count} rows of the inputs along its first axis (batch_first=True, say, or "
                f"x[None] for a single example x), got shape {tuple(output.shape)}"
            )

    def per_pass(self) -> int:
        """Number of rows in a pass by default; passes are of about the same size, so that none has a single row."""
        if any(self._shared) or not self.count:  # such as the edges of a graph, whose nodes are the rows
            return self.count
        nbytes, factor = 0, 1
        for value in tensors_of(self.batch):
            nbytes += value.data.nbytes
            factor = factor if value.data.device.type == "cpu" else ON_ACCELERATORS
        size = -(-nbytes // self.count)
        limit = factor * max(PASS_ROWS, PASS_BYTES // max(size, 1))
        return -(-self.count // -(-self.count // limit))

    def _taken(self, rows: slice | Tensor) -> Rows:
        def take(value: Tensor | PackedSequence) -> Tensor | PackedSequence:
            if isinstance(value, PackedSequence):
                sequences = unpack_sequence(value)
                return pack_sequence([sequences[n] for n in torch.arange(self.count)[rows]], enforce_sorted=False)
            return value[rows.to(value.device) if isinstance(rows, Tensor) else rows]

        taken = copy(self)
        taken.batch, taken.size, taken.parts = self._map(take), None, []
        taken.count = len(range(self.count)[rows]) if isinstance(rows, slice) else len(rows)
        return taken

    def _map(self, function: Callable[[Any], Any]) -> Any:
        shared = iter(self._shared)
        return _map(self.batch, lambda value: value if next(shared) else function(value))


class Chunked:
    """A function of the rows of a batch that is called in chunks, which are halved permanently when memory runs out.

    Args:
        function: Function that returns tensors with the rows along their first axis.
        rows: Number of rows in a chunk. By default they are :meth:`Rows.per_pass`, if the outputs of a row do not
            depend on other rows, as they do where time is the first axis.
    """

    def __init__(self, function: Callable[[Rows], tuple[Tensor, ...]], rows: int | None) -> None:
        self.function = function
        self.rows = rows
        self._apart: bool | None = None

    def __call__(self, rows: Rows) -> tuple[Tensor, ...]:
        """Apply the function to all rows of a batch."""
        if rows.size is None or (self.rows is not None and rows.size > self.rows):
            size = self.rows or rows.per_pass()
            if self.rows is None and size < rows.count:
                self._apart = self._are_apart(rows) if self._apart is None else self._apart
                size = size if self._apart else rows.count
            rows.divide(size)
        while True:
            try:
                results = list(map(self.function, rows.parts or [rows]))
                return results[0] if len(results) == 1 else tuple(map(torch.cat, zip(*results, strict=True)))
            except RuntimeError as error:
                size = (rows.parts or [rows])[0].count
                if not is_out_of_memory(error) or size <= 1:
                    raise
                self.rows = size // 2
                rows.divide(self.rows)

    def _are_apart(self, rows: Rows) -> bool:
        """Whether the last rows of a small batch have the same outputs in a batch of their own."""
        try:
            (among, *_), (alone, *_) = (self.function(rows.part(start, 16)) for start in (0, 12))
        except Exception:  # a model that takes no other number of rows; its own error is raised later
            return False
        expected = among[12:].float()
        return torch.allclose(alone.float(), expected, rtol=0.0, atol=SAME * expected.abs().max().item())


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory has run out; on the CPU this is an ordinary error whose message depends on the system."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(part in str(error) for part in words)


def over_batches(
    function: Callable[[Rows], tuple[Tensor, ...]],
    inputs: Any,
    device: torch.device,
    *,
    batch_size: int | None,
    progress: bool | None,
) -> tuple[Tensor, ...]:
    """Apply a function to the rows of all inputs, with a progress bar; its results of all rows.

    Args:
        function: See :class:`Chunked`.
        inputs: Inputs, as for :func:`bayesadam.predict`.
        device: Device of the inputs.
        batch_size: Rows per call, as for :func:`bayesadam.predict`.
        progress: Whether to show a progress bar, as for :func:`bayesadam.predict`.

    Raises:
        ValueError: There are no batches.
    """
    batches, single = as_batches(inputs)
    apply = Chunked(function, batch_size)
    results = []
    with progress_bar("predicting", length_hint(batches) or None, progress, shown=not single) as advance:
        for (rows,) in groups(batches, device, single, 0):
            results.append(apply(rows))
            advance()
    if not results:
        raise no_batches()
    return tuple(joined(parts, "outputs") for parts in zip(*results, strict=True))


@contextmanager
def draws_in_eval_mode(
    model: nn.Module, posterior: NetworkDistribution, seed: int = 0
) -> Iterator[Callable[[int | None], None]]:
    """Return the posterior's ``draws`` with the model in evaluation mode.

    Modules that merge or cache weights when they change to evaluation mode do so for every sample.
    """
    with in_eval_mode(model) as parts:
        if not parts.changing:
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


def tensors_of(batch: Any) -> list[Tensor | PackedSequence]:
    """The tensors and packed sequences of a batch, in the order of :func:`map_tensors`."""
    if isinstance(batch, Tensor):
        return [batch]
    tensors: list[Tensor | PackedSequence] = []
    _map(batch, tensors.append)
    return tensors


def map_tensors(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to all tensors of a batch, and to the values of packed sequences."""

    def apply(value: Tensor | PackedSequence) -> Tensor | PackedSequence:
        if isinstance(value, Tensor):
            return function(value)
        data = function(value.data)
        return value.to(data.device)._replace(data=data)  # type: ignore[arg-type]

    return _map(batch, apply)


def _map(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to all tensors and packed sequences of a batch, also to those in dicts and tuples within it."""

    def apply(value: Any) -> Any:
        inside = isinstance(value, Tensor | PackedSequence) or type(value) in (dict, tuple)
        return _map(value, function) if inside else value

    if isinstance(batch, Tensor | PackedSequence):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: apply(value) for key, value in batch.items()}
    return tuple(map(apply, batch)) if isinstance(batch, tuple) else batch
