"""A check that gradients are finite, in one pass over them. Its result is a single number; on a GPU with kernels, the
host reads it once it has arrived, and does not wait for it.
"""

from __future__ import annotations

import ctypes
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesadam import native, noise
from bayesadam.core.collect import Gradients
from bayesadam.core.flat import Flat
from bayesadam.native import device as devices
from bayesadam.sharding import full


def trained_of(gradients: Mapping[Flat, Gradients]) -> tuple[list[Tensor], list[Tensor]]:
    """All parameters that have a gradient, and these gradients."""
    trained = [flat.parameters[number] for flat, each in gradients.items() for number in each.numbers]
    return trained, [parameter.grad for parameter in trained]


def first_bad(gradients: Mapping[Flat, Gradients], *, compiles: bool | None) -> Tensor | None:
    """The first parameter whose gradient has an element that is not finite or whose square is not, if there is one.

    For sharded gradients it is a collective call, with the same answer on all ranks.

    Args:
        gradients: Gradients of any dtypes.
        compiles: Use a compiled function where possible, unless this is ``False``.
    """
    if compiles is not False and all(map(_is_simple, gradients, gradients.values())) and _compiled() is not None:
        sizes = [flat.sizes[each.numbers] for flat, each in gradients.items()]
        number = _compiled()(list(chain(*(each.placed.addresses for each in gradients.values()))), sizes)  # type: ignore[misc]
        return None if number is None else trained_of(gradients)[0][number]
    trained, grads = trained_of(gradients)
    if not grads or math.isfinite(_read(full(nn.utils.get_total_norm(grads)))):
        return None
    for parameter, grad in zip(trained, grads, strict=True):
        wide = torch.promote_types(grad.dtype, torch.float32)  # a norm may overflow in float16, its elements do not
        if not math.isfinite(_read(full(torch.linalg.vector_norm(grad, dtype=wide)))):
            return parameter
    return None


@cache
def _compiled() -> Callable[[Sequence[int], Sequence[NDArray[np.int64]]], int | None] | None:
    """The compiled function, or ``None`` if there is none."""
    library = native.load(native.read("finite.cpp"))
    if library is None:
        return None
    function = library.first_bad
    function.restype = ctypes.c_int64

    def walk(addresses: Sequence[int], sizes: Sequence[NDArray[np.int64]]) -> int | None:
        table = np.concatenate([np.array(addresses, dtype=np.int64), *sizes])
        threads = 1 if table[len(addresses) :].sum() <= noise.ALONE else torch.get_num_threads()
        count, place = ctypes.c_int64(len(addresses)), ctypes.c_void_p(table.ctypes.data)
        number: int = function(count, place, ctypes.c_int(threads))
        return None if number < 0 else number

    return walk


def _is_simple(flat: Flat, gradients: Gradients) -> bool:
    """Whether the gradients of a flat are contiguous float32 in CPU memory."""
    return gradients.placed.is_plain and flat.kind.weights is torch.float32 and flat.kind.device.type == "cpu"


def _read(value: Tensor) -> float:
    """A 0-d tensor's number, without a device synchronisation if it is in CPU memory."""
    if value.device.type != "cpu":
        return float(value)
    return float(value.detach().double().numpy())


_NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
"""Numbers of the dtypes in ``native/tiles.py``."""


class DeviceCheck:
    """Search for gradients that are not finite, on a GPU. Later kernels read the result there; the host reads it when
    it arrives.
    """

    def __init__(self) -> None:
        self._table = devices.Table()
        self._found = torch.empty(0)
        self._parameters: Sequence[Tensor] = ()
        self._replayed = False
        self._pending: deque[tuple[Tensor, Any, Sequence[Tensor]]] = deque()

    def start(self, parameters: Sequence[Tensor], grads: Sequence[Tensor]) -> Tensor:
        """Launch the check; return what the programs write: the number of a gradient that is not finite, or
        ``device.NONE``.

        Args:
            parameters: Parameters on one device.
            grads: Their gradients, whose elements have no gaps between them.
        """
        device, self._parameters = grads[0].device, parameters
        if not devices.is_capturing(device):
            self._upload(grads, device)
        if devices.is_refilling():  # before a replay of a graph: the result of the replay before it
            if self._replayed:
                self._fetch()
            self._replayed = True
            return self._found
        from bayesadam.native import tiles

        table = self._table
        programs = min(devices.PROGRAMS, table.programs)
        devices.launch(tiles.check, programs, device, table.parts, table.both, table.programs, self._found)
        if not devices.is_capturing(device):
            self._replayed = False
            self._fetch()
        return self._found

    def _upload(self, grads: Sequence[Tensor], device: torch.device) -> None:
        kinds = [_NUMBERS[grad.dtype] for grad in grads]
        columns = [*map(Tensor.data_ptr, grads), *map(Tensor.numel, grads), *kinds]
        rows = np.array(columns, dtype=np.int64).reshape(3, -1).T
        if np.array_equal(rows, self._table.rows):
            return
        before = self._table.programs
        self._table.write(rows, -(-rows[:, 1] // devices.CHUNK), device)
        if self._table.programs != before:
            self._found = torch.full((devices.PROGRAMS,), devices.NONE, dtype=torch.int32, device=device)

    def _fetch(self) -> None:
        """Begin to copy the result to the host."""
        host = self._found.to("cpu", non_blocking=True, copy=True)
        self._pending.append((host, devices.mark(self._found.device), self._parameters))

    def results(self, *, wait: bool) -> Iterator[Tensor]:
        """For every earlier step with a bad gradient that has not been reported: the first parameter that had one.

        Args:
            wait: Whether to wait for the latest steps, too.
        """
        if devices.is_capturing(self._found.device):
            return
        if wait and self._replayed:
            self._replayed = False
            self._fetch()
        while self._pending:
            host, event, parameters = self._pending[0]
            if event is not None and not event.query():
                if not wait:
                    return
                event.synchronize()
            self._pending.popleft()
            number = int(host.numpy().min())
            if number != devices.NONE:
                yield parameters[number]
