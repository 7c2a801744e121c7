"""The outputs of an uncertain network at samples of it: one loop over the samples."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.posterior import NetworkDistribution
from bayesadam.progress import progress_bar

GROUP_BYTES = 2**28
"""Batches of a loader are collected up to this size, so that samples are drawn once for all of them."""


@torch.no_grad()
def outputs_at_samples(
    model: nn.Module,
    posterior: NetworkDistribution,
    inputs: Any,
    numbers: Sequence[int] | None,
    *,
    seed: int,
    output: Callable[[Any], Tensor] | None,
    batch_size: int | None,
    progress: bool | None,
) -> Tensor:
    """Outputs ``(S, N, ...)`` at samples number ``numbers``, or ``(1, N, ...)`` at the mean if they are ``None``."""
    device = next(model.parameters(), torch.empty(0)).device
    single = isinstance(inputs, Tensor | Mapping | tuple)
    batches: Iterable[Any] = [inputs] if single else inputs
    forward = _Forward(model, output, batch_size)
    parts = []
    samples = [None] if numbers is None else numbers
    total = operator.length_hint(batches) * len(samples) or None
    with (
        _in_eval_mode(model),
        posterior.draws(model, seed, until=0 if numbers is None else len(numbers)) as put,
        progress_bar("predicting", total, progress, shown=not single) as advance,
    ):
        for group in _groups(batches, device, single):
            outputs = []
            for number in samples:
                put(number)
                chunks = []
                for batch in group:
                    chunks.append(forward(batch))
                    advance()
                outputs.append(torch.cat(chunks))
            parts.append(torch.stack(outputs))
    if not parts:
        raise ValueError("inputs must have at least one batch, got an empty loader")
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class _Forward:
    """One forward pass, in chunks of rows that are halved for good when memory runs out."""

    def __init__(self, model: nn.Module, output: Callable[[Any], Tensor] | None, rows: int | None) -> None:
        self.model = model
        self.output = output
        self.rows = rows

    def __call__(self, batch: Any) -> Tensor:
        if self.rows is None:
            try:
                return self._run(batch)
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                self.rows = max(1, _count(batch) // 2)
        total = _count(batch)
        parts: list[Tensor] = []
        start = 0
        while start < total:
            stop = min(start + self.rows, total)
            try:
                parts.append(self._run(_rows(batch, total, start, stop)))
                start = stop
            except RuntimeError as error:
                if not _is_out_of_memory(error) or self.rows == 1:
                    raise
                self.rows //= 2
        return torch.cat(parts)

    def _run(self, batch: Any) -> Tensor:
        if isinstance(batch, Mapping):
            result = self.model(**batch)
        elif isinstance(batch, tuple):
            result = self.model(*batch)
        else:
            result = self.model(batch)
        if self.output is not None:
            result = self.output(result)
        if not isinstance(result, Tensor):
            raise TypeError(
                "output must be given for a model that returns no tensor (output=lambda out: out.logits, say), "
                f"got {type(result).__name__}"
            )
        return result


def _is_out_of_memory(error: RuntimeError) -> bool:
    # On the CPU an ordinary RuntimeError, whose words depend on the system.
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(part in str(error) for part in words)


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; every module's mode is restored after."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _groups(batches: Iterable[Any], device: torch.device, single: bool) -> Iterator[list[Any]]:
    group: list[Any] = []
    size = 0
    for batch in batches:
        if not single and isinstance(batch, list | tuple):
            batch = batch[0]
            if isinstance(batch, list):  # the default collate function makes lists of tuples
                batch = tuple(batch)
        group.append(_to(batch, device))
        size += sum(t.numel() * t.element_size() for t in _tensors(batch))
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _tensors(batch: Any) -> list[Tensor]:
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else [batch]
    return [value for value in values if isinstance(value, Tensor)]


def _map(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    def apply(value: Any) -> Any:
        return function(value) if isinstance(value, Tensor) else value

    if isinstance(batch, Mapping):
        return {key: apply(value) for key, value in batch.items()}
    return tuple(map(apply, batch)) if isinstance(batch, tuple) else apply(batch)


def _to(batch: Any, device: torch.device) -> Any:
    return _map(batch, lambda tensor: tensor.to(device))


def _rows(batch: Any, total: int, start: int, stop: int) -> Any:
    return _map(batch, lambda tensor: tensor[start:stop] if tensor.ndim and len(tensor) == total else tensor)


def _count(batch: Any) -> int:
    return next((len(tensor) for tensor in _tensors(batch) if tensor.ndim), 1)
