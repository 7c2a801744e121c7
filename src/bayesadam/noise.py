"""The only random draw of the library: stateless, counter-based standard normals.

Element ``e`` of a draw is a pure function of ``(seed, stream, step, sample, index, e)``. Nothing is stored, so a
resumed run is bit-identical; ranks that agree on the seed agree on the noise; a shard draws exactly its slice of the
full tensor's noise.

The bits come from Philox4x32 with 7 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011): the fewest rounds that pass all of BigCrush there. Its 128-bit counter and 64-bit key hold the
coordinates as they are (no hashing, no collisions), so two draws that differ in any coordinate never share a word.
The words become normals by the Box-Muller transform, both outputs used; 32 bits of radius reach ``|eps| = 6.76``.

One counter gives four normals. Inside a tile of ``4 * LANES`` consecutive elements, element ``j`` takes output
``j // LANES`` of the tile's counter ``j % LANES``: every write is a run of ``LANES`` elements, not a stride of four.
A tensor of ``n < 4 * LANES`` elements is one tile of ``ceil(n / 4)`` lanes, so that no output is wasted.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from numbers import Integral
from typing import TypeAlias

import torch
from torch import Tensor

Word: TypeAlias = int | Tensor

TRAINING = 0
POSTERIOR = 1
PROBES = 2

LANES = 1024
TILE = 4 * LANES
BLOCK = 128 * TILE
"""Elements per cache-sized block; a multiple of ``TILE``."""
SMALL = 4 * TILE
"""Up to this many elements a draw costs little but its calls, which :func:`normal_many` shares among tensors."""

_ROUNDS = 7
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_LIMITS = {"seed": 64, "step": 32, "sample": 28, "index": 32, "stream": 4}
_TENSORS = {"step", "sample", "index"}


def has_compiler() -> bool:
    """Whether what is ``compiled`` can be, on a CPU."""
    return any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++")))


class Scratch:
    """Buffers that are reused from call to call, one per (name, dtype, device).

    Fresh memory costs more than the arithmetic done in it; a caller that draws often keeps one of these.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self._counters: tuple[object, tuple[Tensor, Tensor, Tensor]] = None, (torch.empty(0),) * 3

    def get(self, name: str, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A 1-D tensor of ``numel`` elements with whatever the last user of ``name`` left in it."""
        key = (name, dtype, device)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < numel:
            buffer = torch.empty(numel, dtype=dtype, device=device)
            self._buffers[key] = buffer
        return buffer[:numel]

    def counters(
        self, counts: Sequence[int], indices: Sequence[int], samples: Sequence[int], device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Block, index and sample word of every counter of :func:`normal_many`; the last ones are kept."""
        key = (*counts, None, *indices, None, *samples, device)
        if self._counters[0] != key:
            repeats = torch.tensor(counts, device=device)
            starts = (repeats.cumsum(0) - repeats).repeat_interleave(repeats)
            block = (torch.arange(len(starts), device=device) - starts).repeat(len(samples))
            index = torch.tensor(indices, device=device).repeat_interleave(repeats).repeat(len(samples))
            sample = torch.tensor(samples, device=device).repeat_interleave(len(starts))
            self._counters = key, (block, index, sample)
        return self._counters[1]


def normal(
    seed: int,
    step: Word,
    sample: Word,
    index: Word,
    shape: Sequence[int],
    *,
    stream: int = TRAINING,
    offset: Sequence[int] | None = None,
    full_shape: Sequence[int] | None = None,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    scratch: Scratch | None = None,
) -> Tensor:
    """Standard normals of the given shape, a pure function of their coordinates.

    Args:
        seed: Integer in ``[0, 2**64)``.
        step: Which optimiser step, in ``[0, 2**32)``. A 0-d integer tensor where the call is compiled.
        sample: Which Monte Carlo sample, in ``[0, 2**28)``; a tensor likewise.
        index: Which parameter, in ``[0, 2**32)``.
        shape: Shape of the result.
        stream: ``TRAINING`` or ``POSTERIOR``: separates training noise from posterior samples; in ``[0, 16)``.
        offset: Where the result starts in a tensor of ``full_shape``, one entry per dimension. Both or neither.
        full_shape: Shape of the whole tensor that the result is a slice of; default ``shape``.
        out: Written to and returned if given: any floating dtype, any strides.
        dtype: Of the result without ``out``; default float32. The draw itself is float32 and then converted, so that
            the noise does not depend on the dtype.
        device: Of the result without ``out``.
        scratch: Reused buffers; default fresh ones.

    Returns:
        ``out``, or a new tensor.

    Raises:
        ValueError: A coordinate out of range, or a slice that does not lie in ``full_shape``.
    """
    shape = tuple(shape)
    key = _checked(seed, step, sample, index, stream)
    if (offset is None) != (full_shape is None):
        raise ValueError(f"offset and full_shape must be given both or neither, got {offset!r} and {full_shape!r}")
    full = shape if full_shape is None else tuple(full_shape)
    start = (0,) * len(shape) if offset is None else tuple(offset)
    if (
        len(start) != len(shape)
        or len(full) != len(shape)
        or any(o < 0 or o + n > f for o, n, f in zip(start, shape, full, strict=True))
    ):
        raise ValueError(f"offset and shape must lie in full_shape {full}, got {start} and {shape}")
    if math.prod(full) >= 2**34:
        raise ValueError(f"full_shape must have fewer than 2**34 elements, got {full!r}")
    if out is None:
        out = torch.empty(shape, dtype=dtype or torch.float32, device=device)
    elif out.shape != shape:
        raise ValueError(f"out must be of shape {shape}, got {tuple(out.shape)}")
    if out.numel() == 0:
        return out
    scratch = scratch or Scratch()
    first = contiguous_start(shape, start, full)
    with torch.no_grad():
        if first is None:
            _fill_slice(out, start, full, key, scratch)
        elif out.is_contiguous():
            fill_(out.view(-1), first, key, scratch, lanes_of(math.prod(full)))
        else:
            flat = scratch.get("strided", out.numel(), torch.float32, out.device)
            fill_(flat, first, key, scratch, lanes_of(math.prod(full)))
            out.copy_(flat.view(shape))
    return out


def normal_many(
    seeds: Sequence[int],
    steps: Sequence[int],
    samples: Sequence[int],
    sizes: Mapping[int, int],
    *,
    stream: int = TRAINING,
    device: torch.device,
    scratch: Scratch,
    compiled: bool = False,
) -> Tensor:
    """Whole draws of several small tensors, samples and seeds in one go: the operations are called once for all.

    Args:
        seeds: As for :func:`normal`, ``P`` of them.
        steps: See there; one for each seed.
        samples: Numbers of the samples, ``S`` of them.
        sizes: Number of elements, at least 1 and best at most ``SMALL``, of every parameter by its index.
        stream: See :func:`normal`.
        device: Of the result.
        scratch: Reused buffers. The result is one of them, which the next call overwrites.
        compiled: Use one compiled kernel, which is several times faster. It needs the compiler that ``torch.compile``
            needs, and some seconds once.

    Returns:
        ``(P, S, sum of sizes)`` in float32, the parameters one after another: to the bit what :func:`normal` gives;
        compiled, to rounding.
    """
    for extreme in (min, max):
        _checked(extreme(seeds), extreme(steps), max(samples), max(sizes), stream)
    lanes = [lanes_of(size) for size in sizes.values()]
    counts = [-(-size // (4 * width)) * width for size, width in zip(sizes.values(), lanes, strict=True)]
    many, each, rows = len(seeds), sum(counts), len(samples)
    with torch.no_grad():
        counters, index, sample = scratch.counters(counts, list(sizes), list(samples), device)
        pool = [word.view(many, rows * each) for word in _words(many * rows * each, device, scratch)]
        block = pool.pop().copy_(counters)
        low, high = ([seed >> shift & _MASK for seed in seeds] for shift in (0, 32))
        key = (_column(low, device), _column(high, device), _column(steps, device), sample, index, stream)
        result = scratch.get("many", many * rows * sum(sizes.values()), torch.float32, device).view(many * rows, -1)
        targets = result.split_with_sizes(list(sizes.values()), dim=1)
        if compiled:  # all words as tensors: a number would be compiled in, or be taken for a size
            words = [torch.as_tensor(word, device=device) for word in key[:5]]
            draws: Iterable[tuple[int, Tensor]] = enumerate(_kernel()(block, *words, stream))
        else:
            draws = _normals(block, key, pool, scratch)
        for output, values in draws:
            parts = values.view(many * rows, each).split_with_sizes(counts, dim=1)
            for target, part, width in zip(targets, parts, lanes, strict=True):
                for first in range(0, part.shape[1], width):
                    place = target[:, 4 * first + output * width : 4 * first + (output + 1) * width]
                    place.copy_(part[:, first : first + place.shape[1]])
    return result.view(many, rows, -1)


def _column(values: Sequence[int], device: torch.device) -> Word:
    """The number that all are, or a column of them."""
    return values[0] if len(set(values)) == 1 else torch.tensor(values, device=device)[:, None]


class Ahead:
    """Draws of small tensors made ahead: together for all of them, and for samples and steps to come."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._key: tuple[object, ...] = ()
        self._steps = self._samples = range(0)
        self._draws: dict[int, Tensor] = {}

    def draw(
        self,
        seed: int,
        step: int,
        sample: int,
        index: int,
        *,
        stream: int = TRAINING,
        device: torch.device,
        sizes: Callable[[], Mapping[int, int]],
        until: int,
        steps: int = 1,
    ) -> Tensor:
        """What :func:`normal` gives for a small parameter, flat and float32; valid until the next call.

        Args:
            seed: As for :func:`normal`, and so are ``step``, ``sample``, ``index``, ``stream`` and ``device``.
            step: See there.
            sample: See there.
            index: See there.
            stream: See there.
            device: See there.
            sizes: Gives the sizes of all small parameters by index; those from ``index`` on are drawn together, as
                many as fit into a block.
            until: Samples from ``sample`` to before this number will be asked for too.
            steps: So many steps from ``step`` on may be asked for too, each for the same samples.
        """
        key = (seed, stream, device)
        known = key == self._key and step in self._steps and sample in self._samples
        if not known or index not in self._draws:
            wanted: dict[int, int] = {}
            total = 0
            for i, size in sizes().items():
                if i == index or (wanted and total + size <= BLOCK // 4):
                    wanted[i] = size
                    total += size
            room = max(1, BLOCK // 4 // total)
            self._key = ()  # an interruption must not leave the numbers of one key under another
            self._samples = range(sample, max(sample + 1, min(until, sample + room)))
            whole = sample == 0 and len(self._samples) >= until and len(wanted) == len(sizes())
            count = min(steps, room // len(self._samples), 2 ** _LIMITS["step"] - step) if whole else 1
            self._steps = range(step, step + max(1, count))
            many = normal_many(
                [seed] * len(self._steps),
                self._steps,
                self._samples,
                wanted,
                stream=stream,
                device=device,
                scratch=self._scratch,
            )
            self._draws = dict(zip(wanted, many.split_with_sizes(list(wanted.values()), dim=2), strict=True))
            self._key = key
        return self._draws[index][step - self._steps.start, sample - self._samples.start]


def _checked(*coordinates: object) -> tuple[Word, ...]:
    """The coordinates in range, as the words of a key: the seed's halves, step, sample, index, stream."""
    words: list[Word] = []
    for (name, bits), value in zip(_LIMITS.items(), coordinates, strict=True):
        if isinstance(value, Tensor) and name in _TENSORS:
            words.append(value)
        elif isinstance(value, Integral) and 0 <= int(value) < 2**bits:
            words += [int(value) & _MASK, int(value) >> 32] if name == "seed" else [int(value)]
        else:
            raise ValueError(f"{name} must be an integer in [0, 2**{bits}), got {value!r}")
    return tuple(words)


def contiguous_start(shape: Sequence[int], offset: Sequence[int], full_shape: Sequence[int]) -> int | None:
    """Flat index at which a slice starts in the full tensor if it is one run of it, else None."""
    start, stride, cut = 0, 1, False
    for size, first, full in zip(reversed(shape), reversed(offset), reversed(full_shape), strict=True):
        if cut and size != 1:
            return None
        start += first * stride
        stride *= full
        cut = cut or size != full
    return start


def lanes_of(numel: int) -> int:
    """Counters in a tile of a tensor with so many elements, at least 1."""
    return LANES if numel >= TILE else -(-numel // 4)


def fill_(out: Tensor, start: Word, key: tuple[Word, ...], scratch: Scratch, lanes: int = LANES) -> None:
    """Write elements ``start ... start + out.numel()`` of a draw into a 1-D tensor, block by block.

    ``key`` is that of :func:`_checked`: ``normal`` is the checked front door. ``lanes`` is that of the whole draw.
    ``start`` may be a 0-d tensor, of a multiple of ``TILE``, and ``out`` then is one block: so one kernel is compiled
    for all blocks.
    """
    if isinstance(start, Tensor):
        _fill_block(out, 0, start // TILE, key, scratch, lanes)
        return
    stop = start + out.numel()
    whole = torch.compiler.is_compiling()
    while start < stop:
        tile = start // TILE
        end = stop if whole else min(stop, tile * TILE + BLOCK)
        _fill_block(out[: end - start], start - tile * TILE, tile, key, scratch, lanes)
        out = out[end - start :]
        start = end


def _fill_block(out: Tensor, skip: int, tile: Word, key: tuple[Word, ...], scratch: Scratch, lanes: int) -> None:
    """Write the elements of a draw from ``skip`` elements behind the start of a tile."""
    needed = skip + out.numel()
    tiles = -(-needed // (4 * lanes))
    counters = tiles * lanes
    direct = skip == 0 and needed == 4 * counters and out.dtype == torch.float32 and out.is_contiguous()
    target = out if direct else scratch.get("normals", 4 * counters, torch.float32, out.device)
    pool = _words(counters, out.device, scratch)
    if isinstance(tile, int):
        block = torch.arange(tile * LANES, tile * LANES + counters, out=pool.pop())
    else:
        block = torch.arange(counters, out=pool.pop()).add_(tile * LANES)
    _write_normals(block, key, target.view(tiles, 4, lanes), pool, scratch)
    if not direct:
        out.copy_(target[skip:needed])


def _words(counters: int, device: torch.device, scratch: Scratch) -> list[Tensor]:
    """What :func:`_write_normals` needs: one buffer for the counters, and its pool."""
    return [scratch.get(f"word{i}", counters, torch.int64, device) for i in range(9)]


def _write_normals(block: Tensor, key: tuple[Word, ...], out: Tensor, pool: list[Tensor], scratch: Scratch) -> None:
    """The four normals of every counter in ``block``, into ``out`` of shape (tiles, 4, lanes)."""
    if torch.compiler.is_compiling():
        _write_compiled(_philox(block, key, pool), out)
        return
    for output, values in _normals(block, key, pool, scratch):
        out[:, output].copy_(values.view(out.shape[0], out.shape[2]))


def _normals(
    block: Tensor, key: tuple[Word, ...], pool: list[Tensor], scratch: Scratch
) -> Iterator[tuple[int, Tensor]]:
    """Number of an output and its normals for every counter, flat, four times; each overwrites the one before."""
    words = _philox(block, key, pool)
    radius, angle, trig = (
        scratch.get(name, block.numel(), torch.float32, block.device) for name in ("radius", "angle", "trig")
    )
    for pair in range(2):
        radius.copy_(words[2 * pair].view(-1)).mul_(2.0**-32).add_(2.0**-33).log_().mul_(-2.0).sqrt_()
        angle.copy_(words[2 * pair + 1].view(-1)).mul_(2.0 * math.pi * 2.0**-32)
        for second, function in enumerate((torch.cos, torch.sin)):
            yield 2 * pair + second, function(angle, out=trig).mul_(radius)


@cache
def _kernel() -> Callable[..., Tensor]:
    """All four outputs of every counter, ``(4, counters)``, by one compiled loop."""

    def kernel(block: Tensor, *key: Word) -> Tensor:
        out = block.new_empty((1, 4, block.numel()), dtype=torch.float32)
        _write_compiled(_philox(block.clone(), key, [torch.empty_like(block) for _ in range(8)]), out)
        return out[0]

    return torch.compile(kernel, dynamic=True, fullgraph=True)


def _write_compiled(words: list[Tensor], out: Tensor) -> None:
    """The rest of :func:`_write_normals` as a compiler likes it: one loop over the counters, one buffer, no writes
    into parts of a buffer, for each of which it would run the whole generator again.
    """
    rows = []
    for first, second in (words[:2], words[2:]):
        radius = first.reshape(-1).float().mul(2.0**-32).add(2.0**-33).log().mul(-2.0).sqrt()
        angle = second.reshape(-1).float().mul(2.0 * math.pi * 2.0**-32)
        rows += [angle.cos().mul(radius), angle.sin().mul(radius)]
    out.copy_(torch.stack(rows).view(4, out.shape[0], out.shape[2]).transpose(0, 1))


def _fill_slice(
    out: Tensor, offset: tuple[int, ...], full: tuple[int, ...], key: tuple[Word, ...], scratch: Scratch
) -> None:
    """A slice that is not one run of the full tensor: run by run of its longest contiguous trailing part."""
    axis = len(full) - 1
    while out.shape[axis] == full[axis]:
        axis -= 1
    inner = math.prod(full[axis + 1 :])
    rows = out.reshape(-1, out.shape[axis] * inner)
    copied = rows.data_ptr() != out.data_ptr()
    starts = torch.zeros(1, dtype=torch.int64)
    for dim in range(axis):
        positions = torch.arange(offset[dim], offset[dim] + out.shape[dim]) * math.prod(full[dim + 1 :])
        starts = (starts[:, None] + positions).reshape(-1)
    for row, first in zip(rows, starts.tolist(), strict=True):
        fill_(row, first + offset[axis] * inner, key, scratch, lanes_of(math.prod(full)))
    if copied:
        out.copy_(rows.view(out.shape))


def _philox(block: Tensor, key: tuple[Word, ...], pool: list[Tensor]) -> list[Tensor]:
    """Four 32-bit words (in int64) for every counter in ``block``, which is overwritten; buffers from ``pool``."""
    low, high, step, sample, index, stream = key
    number = sample | (stream << 28) if isinstance(sample, int) else sample.bitwise_or(stream << 28)

    def word(value: Word) -> Word:
        return value if isinstance(value, int) else pool.pop().copy_(value)

    return philox_rounds([block, word(index), word(step), word(number)], [low, high], pool, _ROUNDS)


def philox_rounds(counter: list[Word], key: list[Word], pool: list[Tensor], rounds: int) -> list[Tensor]:
    """Philox4x32. Words that are the same everywhere stay Python integers for as long as they can.

    Tensors are int64 and hold 32-bit words; those of ``counter`` are overwritten and ``pool`` supplies the others.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        first, second = _multiply(c0, _MULTIPLIERS[0], pool), _multiply(c2, _MULTIPLIERS[1], pool)
        c0, c1, c2, c3 = _mix(second, c1, k0, c0, pool), second, _mix(first, c3, k1, c2, pool), first
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return [w.bitwise_and_(_MASK) if isinstance(w, Tensor) else pool.pop().fill_(w & _MASK) for w in (c0, c1, c2, c3)]


def _multiply(word: Word, multiplier: int, pool: list[Tensor]) -> Word:
    """The 64-bit product; as a signed tensor it wraps, its bits are right."""
    if isinstance(word, int):
        return word * multiplier
    return torch.mul(word, multiplier, out=pool.pop())


def _mix(product: Word, word: Word, key: Word, dead: Word, pool: list[Tensor]) -> Word:
    """``high(product) ^ low(word) ^ key``; ``word`` and ``dead`` are not needed afterwards."""
    if isinstance(product, int):
        if isinstance(dead, Tensor):
            pool.append(dead)
        if isinstance(word, int):
            return ((product >> 32) ^ word ^ key) & _MASK
        return word.bitwise_xor_((product >> 32) ^ key).bitwise_and_(_MASK)
    mixed = dead if isinstance(dead, Tensor) else pool.pop()
    torch.bitwise_right_shift(product, 32, out=mixed)
    if isinstance(word, int):
        return mixed.bitwise_xor_(word ^ key).bitwise_and_(_MASK)
    pool.append(word)
    return mixed.bitwise_xor_(word).bitwise_xor_(key).bitwise_and_(_MASK)
