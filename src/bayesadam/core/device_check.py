"""A check on a GPU that gradients are finite, in one pass over them. Its result is a single number; the host reads it
once it has arrived, and does not wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam.native import device as devices

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
