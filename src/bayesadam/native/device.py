"""Kernels of Triton on a GPU: whether they can be used, uploads for which the host does not wait, and launches.

``TRITON_INTERPRET=1``, set before triton is imported, runs the same kernels on a CPU, for tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LANES = 1024
"""Counters of a whole tile of noise."""
BLOCK = 256
"""Lanes of one program: with more, the kernels need more registers than there are."""
CHUNK = 4096
"""Elements that a program of the check looks at together."""
PROGRAMS = 1024
"""Largest number of programs of the check. They share the elements, and each writes its own result."""
FILL_COLUMNS = 9
"""Columns of a table of noise, see ``normal.cpp``."""
NONE = 2**31 - 1
"""What the check writes if it finds nothing."""
WORKING_SET = 2**30
"""Bytes that other devices than a CPU treat at a time: enough to keep them busy."""


def working_set(device: torch.device, cached: int) -> int:
    """Bytes to treat at a time: ``cached`` ones, which fit a CPU's caches, or :data:`WORKING_SET` on another device,
    where every launch takes its time.
    """
    return cached if device.type == "cpu" else WORKING_SET


@cache
def is_available(device: torch.device) -> bool:
    """Whether kernels of Triton run on a device: on GPUs of NVIDIA and AMD if triton is installed."""
    return _has_triton() and device.type == ("cpu" if _is_interpreted() else "cuda")


def is_capturing(device: torch.device) -> bool:
    """Whether launches are recorded in a graph of the device at this moment, and not run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def mark(device: torch.device) -> Any:
    """An event that occurs when the device has finished all work so far; ``None`` if none is needed."""
    if device.type == "cpu":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


_REFILLING = [False]


def is_refilling() -> bool:
    """Whether numbers are brought to the device for a graph that is replayed later, without launching anything."""
    return _REFILLING[0]


@contextmanager
def refilling() -> Iterator[None]:
    """A context of :func:`is_refilling`."""
    _REFILLING[0] = True
    try:
        yield
    finally:
        _REFILLING[0] = False


@cache
def _has_triton() -> bool:
    return os.environ.get("BAYESADAM_NATIVE", "1") != "0" and find_spec("triton") is not None


@cache
def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def upload(array: NDArray[Any], device: torch.device, into: Tensor | None = None) -> Tensor:
    """A copy of an array on the device, in ``into`` if it is as long; the host does not wait for a GPU."""
    source = torch.from_numpy(array)
    if device.type == "cuda":
        source = source.pin_memory()
    if into is None or len(into) != len(array):
        return source.to(device, non_blocking=True, copy=True)
    return into.copy_(source, non_blocking=True)


def order_of(*tensors: Tensor) -> tuple[int, int] | None:
    """Numbers of positions and of channels of tensors that have the channels last in memory, zeros for contiguous
    ones, and ``None`` for tensors of different or other memory formats.
    """
    first = tensors[0]
    if all(map(Tensor.is_contiguous, tensors)):
        return 0, 0
    last = torch.channels_last if first.ndim == 4 else torch.channels_last_3d
    if first.ndim not in (4, 5) or not all(tensor.is_contiguous(memory_format=last) for tensor in tensors):
        return None
    return first.shape[2:].numel(), first.shape[1]


class Table:
    """A table on the device, with the programs of its rows. Its memory stays the same while its length does, so that a
    graph can replay what reads it.

    Attributes:
        rows: The table.
        programs: Number of programs.
        both: The table on the device, followed by the pairs of the programs.
        parts: A pair for every program: its row, and its number among the programs of this row.
    """

    def __init__(self) -> None:
        self.rows: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        self.programs = 0
        self.both = self.parts = torch.empty(0)

    def write(self, rows: NDArray[np.int64], programs: NDArray[np.int64], device: torch.device) -> None:
        """Bring a table to the device, in one upload.

        Args:
            rows: The table.
            programs: Number of programs of every row.
            device: The device.
        """
        owners = np.repeat(np.arange(len(rows)), programs)
        numbers = np.arange(len(owners)) - np.repeat(np.cumsum(programs) - programs, programs)
        pairs = np.stack([owners, numbers], axis=1, dtype=np.int32)
        aligned = np.zeros(rows.size % 2, dtype=np.int64)
        both = np.concatenate([rows.ravel(), aligned, pairs.view(np.int64).ravel()])
        self.both = upload(both, device, self.both)
        self.parts = self.both[rows.size + rows.size % 2 :].view(torch.int32)
        self.rows, self.programs = rows.copy(), len(pairs)


def programs_of(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of programs for every run of a table, whose columns begin with its first element, size and lanes."""
    first, size, lanes = table[:, 0], table[:, 1], table[:, 2]
    tile = 4 * LANES
    tiles = np.where(size > 0, (first + size - 1) // tile - first // tile + 1, 0)
    return tiles * -(-lanes // BLOCK)


def launch(function: Any, programs: int, device: torch.device, *args: Any, warps: int = 4) -> None:
    """Launch a function with this number of programs. Sums and products are not fused, as in the compiled C++."""
    if not programs:
        return
    if device.type == "cpu":
        function[(programs,)](*args)
        return
    with torch.cuda.device(device):
        function[(programs,)](*args, num_warps=warps, enable_fp_fusion=False)


def fill(table: NDArray[np.int64], device: torch.device) -> None:
    """Fill runs with normals; the columns of the table are those of ``normal.cpp``. With four more columns, the
    addresses of means and standard deviations and the numbers of :func:`order_of`, fill them with samples.
    """
    from bayesadam.native import tiles

    runs = Table()
    runs.write(table, programs_of(table), device)
    launch(tiles.fill, runs.programs, device, runs.parts, runs.both, table.shape[1])
