"""Stateless, counter-based standard normals, the only random draw of the library.

Element ``e`` of a draw is a pure function of ``(seed, stream, step, sample, index, e)``. No generator state is stored,
so a resumed run is bit-identical, ranks with the same seed draw the same noise, and a shard draws exactly its slice of
the full tensor's noise.

The bits come from Philox4x32 with 7 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
3", SC 2011), the smallest number of rounds that passes all tests of BigCrush in that paper. Its 128-bit counter and
64-bit key hold the coordinates themselves, without hashing and thus without collisions, so two draws that differ in any
coordinate never share a word. The words become normals by the Box-Muller transform, which uses both outputs; 32 bits of
radius reach ``|eps| = 6.76``.

One counter gives four normals. Inside a tile of ``4 * LANES`` consecutive elements, element ``j`` takes output ``j //
LANES`` of the tile's counter ``j % LANES``, so that each write is a run of ``LANES`` elements and not a stride of four.
A tensor of ``n < 4 * LANES`` elements is one tile of ``ceil(n / 4)`` lanes, so that no output is wasted.

On a CPU with a C++ compiler the numbers come from a compiled function (``native/normal.h``), on a GPU with Triton from
a kernel (``native/tiles.py``), elsewhere from PyTorch's operations. They are equal up to rounding, and a machine always
uses the same one.
"""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from numbers import Integral
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam import native
from bayesadam.functional.philox import constants, normals
from bayesadam.native import device as kernels
from bayesadam.native.memory import PLAIN, are_backed, placed

__all__ = [
    "Draws",
    "checked",
    "fill_many",
    "fill_runs",
    "has_kernel",
    "lanes_of",
    "normal",
    "normal_many",
    "runs_of",
    "table_row",
]

Fill: TypeAlias = Callable[[NDArray[np.int64], int], None]
Run: TypeAlias = tuple[int, int, int, int]
"""Index of a parameter, its first element, its number of elements, and that of the whole draw."""

TRAINING = 0
POSTERIOR = 1
PROBES = 2

LANES = kernels.LANES
TILE = 4 * LANES
BLOCK = 128 * TILE
"""Elements per cache-sized block; a multiple of ``TILE``."""
PIECE = 512 * TILE
"""Elements for which PyTorch's operations draw noise at a time off the CPU, which bounds their memory (to 150 MiB)."""
ALONE = 2**15
"""Number of elements up to which one thread is faster than several."""

_DEVICE = attrgetter("device")
_MASK = 0xFFFFFFFF
_LIMITS = {"seed": 64, "step": 32, "sample": 28, "index": 32, "stream": 4}


def normal(
    seed: int,
    step: int,
    sample: int,
    index: int,
    shape: Sequence[int],
    *,
    stream: int = TRAINING,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw standard normals of the given shape, a pure function of their coordinates.

    Args:
        seed: Integer in ``[0, 2**64)``.
        step: Number of the optimiser step, in ``[0, 2**32)``.
        sample: Number of the Monte Carlo sample, in ``[0, 2**28)``.
        index: Number of the parameter, in ``[0, 2**32)``.
        shape: Shape of the result.
        stream: ``TRAINING`` or ``POSTERIOR``, which separates training noise from posterior samples; in ``[0, 16)``.
        device: Device of the result.

    Returns:
        A new tensor in float32.

    Raises:
        ValueError: A coordinate is out of range.
    """
    out = torch.empty(tuple(shape), dtype=torch.float32, device=device)
    fill_many({index: out}, seed, step, sample, stream=stream)
    return out


def fill_many(outs: Mapping[int, Tensor], seed: int, step: int, sample: int, *, stream: int = TRAINING) -> None:
    """Fill several tensors with draws of one sample, as :func:`normal` does for each; one call where it is compiled.

    Args:
        outs: Tensors to fill, by the index of their parameter; of any floating dtypes and strides. The draws are
            float32 and then converted, so that the noise does not depend on the dtype.
        seed: Seed, as for :func:`normal`.
        step: Number of the step, as for :func:`normal`.
        sample: Number of the sample, as for :func:`normal`.
        stream: Stream, as for :func:`normal`.
    """
    if not outs:
        return
    for index in (min(outs), max(outs)):
        seed, step, sample, _, stream = checked(seed, step, sample, index, stream)
    whole = [(out, [(index, 0, out.numel(), out.numel())]) for index, out in outs.items()]
    _fill(whole, seed, step, sample | stream << 28)


class Draws:
    """Draws of one seed and step for several tensors, sample by sample; what all samples share is computed once.

    Args:
        like: Tensors like those that a sample is drawn into, by the index of their parameter.
        seed: Seed, as for :func:`normal`.
        step: Number of the step, as for :func:`normal`.
        stream: Stream, as for :func:`normal`.
    """

    def __init__(self, like: Mapping[int, Tensor], seed: int, *, step: int = 0, stream: int = TRAINING) -> None:
        for index in (min(like, default=0), max(like, default=0)):
            self.seed, self.step, _, _, self.stream = checked(seed, step, 0, index, stream)
        self.like = list(like.values())
        self._runs, self._shapes, self._numel = list[Run](), list[torch.Size](), 0
        table, kinds = [], set()
        for index, tensor in like.items():
            run = index, 0, tensor.numel(), tensor.numel()
            self._runs.append(run)
            self._shapes.append(tensor.shape)
            self._numel += tensor.numel()
            table.append(table_row(0, run, self.seed, self.step, 0))
            kinds.add((tensor.dtype, tensor.device))
        self._table = np.array(table, dtype=np.int64)
        self._native_fill: Fill | None = None
        if len(kinds) == 1 and tensor.dtype == torch.float32:
            self._device, self._native_fill = tensor.device, _native(torch.empty(0, device=tensor.device))

    def draw(self, outs: list[Tensor], sample: int) -> list[Tensor]:
        """Draw a sample into tensors, in the order of ``like``, and return them.

        In place of a tensor with another dtype or device than that of ``like``, or with gaps, a new one is returned.

        Args:
            outs: The tensors.
            sample: Number of the sample, as for :func:`normal`.
        """
        _, _, sample, _, _ = checked(self.seed, self.step, sample, 0, self.stream)
        number = sample | self.stream << 28
        plain = set(map(type, outs)) <= PLAIN
        if self._native_fill is not None and plain and set(map(_DEVICE, outs)) == {self._device}:
            where = placed(outs, self._shapes, self._device, torch.float32, converts=True)
            if where.is_plain:
                table = self._table.copy()  # threads may share the object
                table[:, 6], table[:, 8] = number, where.addresses
                self._native_fill(table, self._numel)
                return outs
        rooms = list(map(_room, outs, self.like))
        _fill([(room, [run]) for room, run in zip(rooms, self._runs, strict=True)], self.seed, self.step, number)
        return rooms


def _room(out: Tensor, like: Tensor) -> Tensor:
    """The tensor itself, if it is contiguous and of the kind of another one, or else a new one."""
    fits = (out.dtype, out.device) == (like.dtype, like.device) and out.is_contiguous()
    return out if fits else torch.empty_like(like, memory_format=torch.contiguous_format)


def normal_many(
    seeds: Sequence[int],
    steps: Sequence[int],
    samples: Sequence[int],
    sizes: Mapping[int, int],
    *,
    stream: int = TRAINING,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw whole tensors of several parameters, samples and seeds with a single sequence of operations.

    Args:
        seeds: Seeds, as for :func:`normal`; ``P`` of them.
        steps: Number of the step for each seed.
        samples: Numbers of the samples, ``S`` of them.
        sizes: Number of elements, at least 1, of every parameter by its index.
        stream: Stream, as for :func:`normal`.
        device: Device of the result.

    Returns:
        ``(P, S, sum of sizes)`` in float32, the parameters one after another; bit-identical to :func:`normal`.
    """
    for extreme in (min, max):
        checked(extreme(seeds), extreme(steps), extreme(samples), extreme(sizes), stream)
    shape = len(seeds), len(samples), sum(sizes.values())
    result = torch.empty(shape, dtype=torch.float32, device=device)
    native_fill, numbers = _native(result), (np.array(samples) | stream << 28).tolist()
    if native_fill is not None:
        native_fill(_table(result, seeds, steps, numbers, sizes), result.numel())
        return result
    with torch.no_grad():
        runs = [(index, 0, size, size) for index, size in sizes.items()]
        _fill_many(result, runs, seeds, steps, numbers)
    return result


def fill_runs(out: Tensor, runs: Sequence[Run], *, seed: int, step: int, sample: int, stream: int = TRAINING) -> Tensor:
    """Draw runs of elements of several parameters' noise, one after another, in one call.

    Args:
        out: 1-D, contiguous and float32, as long as all runs together; it is overwritten and returned.
        runs: The runs.
        seed: Seed, as for :func:`normal`.
        step: Number of the step, as for :func:`normal`.
        sample: Number of the sample, as for :func:`normal`.
        stream: Stream, as for :func:`normal`.
    """
    for extreme in (min, max):
        checked(seed, step, sample, extreme(run[0] for run in runs), stream)
    _fill([(out, runs)], seed, step, sample | stream << 28)
    return out


def _fill(outs: Sequence[tuple[Tensor, Sequence[Run]]], seed: int, step: int, number: int) -> None:
    """Fill tensors of any floating dtypes and strides with runs, in one call for all that are filled by one function.

    Args:
        outs: The tensors, each with its runs.
        seed: Seed.
        step: Number of the step.
        number: Number of the sample, with the stream in its highest bits.
    """
    rows: dict[Fill, list[list[int]]] = {}
    copies: list[tuple[Tensor, Tensor]] = []
    for out, runs in outs:
        if out.numel() != sum(run[2] for run in runs) or not are_backed([out]):
            raise ValueError(
                f"out must be in memory and have the elements of all runs, got shape {tuple(out.shape)} in "
                f"{out.untyped_storage().nbytes()} bytes"
            )
        flat = out
        if out.dtype != torch.float32 or not out.is_contiguous():
            flat = torch.empty(out.shape, dtype=torch.float32, device=out.device)
            copies.append((out, flat))
        native_fill = _native(flat)
        if native_fill is None:
            with torch.no_grad():
                for part, own in _pieces(flat.view(-1), runs, BLOCK if out.device.type == "cpu" else PIECE):
                    _fill_many(part.view(1, 1, -1), own, [seed], [step], [number])
            continue
        place = flat.data_ptr()
        for run in runs:
            rows.setdefault(native_fill, []).append(table_row(place, run, seed, step, number))
            place += 4 * run[2]
    for native_fill, table in rows.items():
        native_fill(np.array(table, dtype=np.int64), sum(row[1] for row in table))
    if copies:
        with torch.no_grad():
            torch._foreach_copy_([out for out, _ in copies], [flat for _, flat in copies])


def _pieces(out: Tensor, runs: Sequence[Run], limit: int) -> Iterator[tuple[Tensor, list[Run]]]:
    """Divide runs, between tiles, into groups of at most so many elements, each with its part of the result."""
    start, group, room = 0, list[Run](), limit
    for index, first, size, whole in runs:
        while size:
            taken = size if size <= room else room - (first + room) % TILE
            if taken > 0:
                group.append((index, first, taken, whole))
                first, size, room = first + taken, size - taken, room - taken
            if size or not room:
                stop = start + limit - room
                yield out[start:stop], group
                start, group, room = stop, [], limit
    if group:
        yield out[start:], group


def _fill_many(
    out: Tensor,
    runs: Sequence[Run],
    seeds: Sequence[int],
    steps: Sequence[int],
    samples: Sequence[int],
) -> None:
    """Fill a tensor with runs of elements, by a single sequence of PyTorch's operations.

    Args:
        out: ``(P, S, elements of all runs)``, contiguous.
        runs: The runs.
        seeds: ``P`` seeds.
        steps: Number of the step for each.
        samples: Words of ``S`` samples, with the stream in their highest bits.
    """
    (many, rows, total), device = out.shape, out.device
    index, first, size, whole = np.array(runs, dtype=np.int64).T
    lanes = np.array([lanes_of(int(each)) for each in whole])
    tile, skipped = np.divmod(first, TILE)
    counts = -(-(skipped + size) // (4 * lanes)) * lanes
    begins, starts, each = np.cumsum(counts) - counts, np.cumsum(size) - size - skipped, int(counts.sum())
    columns = np.stack([counts, size, index, tile * LANES - begins, begins, starts, lanes])
    counts_, size_, index_, shift, begin, start, lanes_ = kernels.upload(columns, device).unbind(0)
    words = torch.empty(3, 2, many, rows, each, dtype=torch.int64, device=device)
    run = torch.repeat_interleave(counts_, output_size=each)
    words[0, 0].copy_(torch.arange(each, device=device).add_(shift[run]))
    words[1, 0].copy_(index_[run])
    _set(words[0, 1], steps, (-1, 1, 1))
    _set(words[1, 1], samples, (-1, 1))
    own = seeds[:1] if len(set(seeds)) == 1 else seeds
    rounds = constants([seed & _MASK for seed in own], [seed >> 32 for seed in own])
    outputs = torch.empty(many, rows, 4, each, dtype=torch.float32, device=device)
    for output, *factors in normals((words[0], words[1], words[2]), kernels.upload(rounds[..., None], device)):
        torch.mul(*factors, out=outputs[:, :, output])
    # Element j behind the first tile is output q % 4, where q = j // lanes, of counter q // 4 * lanes + j % lanes.
    run = torch.repeat_interleave(size_, output_size=total)
    width, place = lanes_[run], torch.arange(total, device=device).sub_(start[run])
    quotient = place // width
    place.sub_((quotient - (quotient >> 2)).mul_(width)).add_(begin[run]).add_(quotient.bitwise_and_(3), alpha=each)
    torch.index_select(outputs.view(many * rows, 4 * each), 1, place, out=out.view(many * rows, total))


def _table(out: Tensor, seeds: Sequence[int], steps: Any, numbers: Any, sizes: Mapping[int, int]) -> NDArray[np.int64]:
    """The rows of ``native/normal.cpp`` for :func:`normal_many`: for seeds, samples and parameters, in this order."""
    counts, words = np.array(list(sizes.values())), np.array(seeds, dtype=np.uint64)[:, None, None]
    lanes = list(map(lanes_of, sizes.values()))
    low, high, step = words & _MASK, words >> 32, np.array(steps)[:, None, None]
    rows = np.arange(len(seeds) * len(numbers)).reshape(len(seeds), -1, 1)
    places = out.data_ptr() + 4 * (rows * counts.sum() + np.cumsum(counts) - counts)
    columns = 0, counts, lanes, low, high, step, np.array(numbers)[:, None], list(sizes), places
    table = np.empty((len(seeds), len(numbers), len(sizes), kernels.FILL_COLUMNS), dtype=np.int64)
    for column, values in enumerate(columns):
        table[..., column] = values
    return table.reshape(-1, kernels.FILL_COLUMNS)


def _set(word: Tensor, values: Sequence[int], shape: tuple[int, ...]) -> None:
    """Set a word of the counters to numbers, which broadcast in this shape."""
    if len(set(values)) == 1:
        word.fill_(values[0])
    else:
        word.copy_(kernels.upload(np.array(values, dtype=np.int64), word.device).view(shape))


def checked(*coordinates: Any) -> tuple[int, ...]:
    """Check the ranges of seed, step, sample, index and stream; return them as Python's integers."""
    for (name, bits), value in zip(_LIMITS.items(), coordinates, strict=True):
        if not (type(value) is int or isinstance(value, Integral)) or not 0 <= int(value) < 1 << bits:
            raise ValueError(f"{name} must be an integer in [0, 2**{bits}), got {value!r}")
    return tuple(map(int, coordinates))


def lanes_of(numel: int) -> int:
    """Number of counters in a tile of a tensor with so many elements, at least 1."""
    return LANES if numel >= TILE else -(-numel // 4)


def table_row(place: int, run: Run, seed: int, step: int, number: int) -> list[int]:
    """A row of the table of ``native/normal.cpp``, for a run whose noise is written to a place in memory."""
    index, first, size, whole = run
    return [first, size, lanes_of(whole), seed & _MASK, seed >> 32, step, number, index, place]


def _native(out: Tensor) -> Fill | None:
    """The compiled function or the kernel that fills runs, each a row of a table, with so many elements in all.

    It is None for subclasses of tensors, whose memory is elsewhere.
    """
    if type(out) not in PLAIN:
        return None
    if kernels.is_available(out.device):
        return _kernel(out.device)
    return _compiled() if out.device.type == "cpu" else None


@cache
def _compiled() -> Fill | None:
    """The compiled function, after comparison with PyTorch's operations; ``None`` if it cannot be compiled or
    differs.
    """
    library = native.load(native.read("normal.cpp"))
    if library is None:
        return None

    def fill(table: NDArray[np.int64], numel: int) -> None:
        threads = 1 if numel <= ALONE else torch.get_num_threads()
        library.normals(ctypes.c_int64(len(table)), ctypes.c_void_p(table.ctypes.data), ctypes.c_int(threads))

    return _tried(fill, torch.device("cpu"))


@cache
def _kernel(device: torch.device) -> Fill | None:
    """The kernel of a GPU, after comparison with PyTorch's operations; ``None`` if it cannot be compiled or differs."""

    def fill(table: NDArray[np.int64], numel: int) -> None:
        kernels.fill(table, device)

    try:
        return _tried(fill, device)
    except Exception as error:  # of Triton or of its compiler, which has many kinds
        warnings.warn(f"noise is drawn without its kernel: {error}", RuntimeWarning, stacklevel=2)
        return None


def has_kernel(device: torch.device) -> bool:
    """Whether noise on a device comes from a kernel of a GPU."""
    return kernels.is_available(device) and _kernel(device) is not None


def _tried(fill: Fill, device: torch.device) -> Fill | None:
    """The function, if it gives the numbers of PyTorch's operations."""
    out, expected = (torch.empty(3 * TILE, dtype=torch.float32, device=device) for _ in range(2))
    run, seed, step, number = (7, TILE + 5, 3 * TILE, TILE), 987654321 << 32 | 123456789, 5, 3 | POSTERIOR << 28
    fill(np.array([table_row(out.data_ptr(), run, seed, step, number)], dtype=np.int64), out.numel())
    _fill_many(expected.view(1, 1, -1), [run], [seed], [step], [number])
    if not torch.allclose(out, expected, rtol=1e-4, atol=1e-5):
        warnings.warn(
            "noise is drawn without its compiled function, which gives other numbers on this machine",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return fill


def runs_of(index: int, shape: Sequence[int], offset: Sequence[int], full: Sequence[int]) -> list[Run]:
    """The runs of a slice of a parameter's noise: each one is of its longest contiguous trailing part."""
    axis = max((dim for dim, size in enumerate(shape) if size != full[dim]), default=0)
    starts = [0]
    for dim in range(axis):
        stride, positions = math.prod(full[dim + 1 :]), range(offset[dim], offset[dim] + shape[dim])
        starts = [start + position * stride for start in starts for position in positions]
    inner = math.prod(full[axis + 1 :])
    first, size = (offset[axis] * inner, shape[axis] * inner) if shape else (0, 1)
    return [(index, start + first, size, math.prod(full)) for start in starts]
