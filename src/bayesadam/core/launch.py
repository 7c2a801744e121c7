"""Running a pass over the members of a flat: by one compiled kernel, or by PyTorch's operations.

The compiled code and PyTorch's give the same numbers up to rounding. Where no kernel fits (another device or dtype, no
compiler) PyTorch's operations are used. A kernel is compared with them before its first use.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam import native, noise
from bayesadam.core import cpp, interpret
from bayesadam.core.draws import Draw
from bayesadam.core.flat import Flat, Piece
from bayesadam.core.passes import Pass
from bayesadam.core.record import NotElementwise, Program, record
from bayesadam.sharding import local, place

Lists: TypeAlias = Mapping[str, Sequence[Tensor]]
"""Tensors of single members that are not in a flat, by name: ``weights``, ``grad`` and ``kept``."""
Draws: TypeAlias = Mapping[str, Draw]
Kernel: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], int], None]
"""Compiled function of a table of runs, a row of numbers and of words for every one of its groups, and the number of
elements.
"""
SCRATCH = noise.Scratch()
_NOTHING = Draw(0, 0, 0, False)


def run(
    work: Pass,
    flat: Flat,
    chosen: NDArray[np.int64],
    numbers: Mapping[str, Any],
    lists: Lists,
    draws: Draws,
    *,
    compile: bool | None,
) -> None:
    """Run a pass over some members of a flat.

    Args:
        work: The pass.
        flat: The flat.
        chosen: Numbers of the members, in order.
        numbers: Numbers of the pass by name, each a float or an array with one for every member of the flat.
        lists: Tensors of the chosen members.
        draws: Noise by name, ``eps`` and ``next_eps``.
        compile: Whether to use a kernel where it fits; ``None`` uses one if it is available, without a warning.
    """
    if not len(chosen):
        return
    kind = flat.kind
    if compile is not False and kind.is_run and kind.device.type == "cpu" and kind.dtype != torch.float16:
        kernel = kernel_of(work, kind.weights, kind.dtype, asked=compile is True)
        if kernel is not None:
            _run_compiled(kernel, work, flat, chosen, numbers, lists, draws)
            return
    _run_eagerly(work, flat, chosen, numbers, lists, draws)


@cache
def program_of(work: Pass, weights: torch.dtype, real: torch.dtype) -> Program:
    """The recording of a pass.

    Args:
        work: The pass.
        weights: Dtype of the weights.
        real: Dtype of the state.
    """
    tensors = {name: weights if name in ("weights", "grad") else real for name in (*work.inputs, *work.draws)}
    try:
        return record(work.run, tensors, work.numbers)
    except NotElementwise as error:
        raise NotElementwise(f"{type(work.rule).__name__} must be element-wise, but {error}") from None


def _run_compiled(
    kernel: Kernel,
    work: Pass,
    flat: Flat,
    chosen: NDArray[np.int64],
    numbers: Mapping[str, Any],
    lists: Lists,
    draws: Draws,
) -> None:
    program = program_of(work, flat.kind.weights, flat.kind.dtype)
    names = cpp.columns(program, work.draws)
    table = flat.tables.get(work)
    if table is None:
        table = np.concatenate([flat.rows, np.zeros((len(flat.members), len(names)), int)], axis=1)
        for column, name in enumerate(names, cpp.FIXED):
            if name in flat.tensors:
                vector = flat.tensors[name]
                table[:, column] = vector.data_ptr() + vector.element_size() * flat.starts
        flat.tables[work] = table  # only when it is whole: an exception may come from a signal at any time
    if len(chosen) < len(table):
        table = table[chosen]
    copies: list[tuple[Tensor, Tensor]] = []  # of tensors whose memory is in another order than their elements
    for column, name in enumerate(names, cpp.FIXED):
        if name in lists:
            tensors, dtype = lists[name], program.tensors[name]
            if not all(map(Tensor.is_contiguous, tensors)) or any(tensor.dtype is not dtype for tensor in tensors):
                tensors = [_flattened(tensor, dtype, copies) for tensor in tensors]
            table[:, column] = list(map(Tensor.data_ptr, tensors))
    values = [numbers[name] for name in program.numbers]
    if any(isinstance(value, np.ndarray) for value in values):
        columns = [np.broadcast_to(value, len(flat.members)) for value in values]
        rows = np.ascontiguousarray(np.stack(columns, axis=1, dtype=np.float64)[chosen])
        table[:, 4] = np.arange(len(chosen))
    else:
        rows = np.array([values], dtype=np.float64)
        table[:, 4] = 0
    this, following = (draws[name] if name in work.draws else _NOTHING for name in ("eps", "next_eps"))
    seed = max(this.seed, following.seed)  # that of both, or of the one that is drawn
    signs = int(this.negative) | int(following.negative) << 1
    words = [seed & 0xFFFFFFFF, seed >> 32, this.step, this.pair, following.step, following.pair, signs]
    kernel(np.ascontiguousarray(table), rows, np.array(words, dtype=np.int64), int(flat.sizes[chosen].sum()))
    for target, copy in copies:
        if any(target is weights for weights in lists["weights"]) and "weights" in program.results:
            target.copy_(copy)
    if "weights" in program.results:
        torch.autograd.graph.increment_version(list(lists["weights"]))


def _flattened(tensor: Tensor, dtype: torch.dtype, copies: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The tensor itself, or a copy in the order of its elements and in a dtype, which is noted."""
    if tensor.is_contiguous() and tensor.dtype is dtype:
        return tensor
    copies.append((tensor, tensor.to(dtype, memory_format=torch.contiguous_format, copy=True)))
    return copies[-1][1]


def _run_eagerly(
    work: Pass, flat: Flat, chosen: NDArray[np.int64], numbers: Mapping[str, Any], lists: Lists, draws: Draws
) -> None:
    program = program_of(work, flat.kind.weights, flat.kind.dtype)
    scalars = interpret.numbers_of_body(program, numbers)
    position = dict(zip(chosen.tolist(), range(len(chosen)), strict=True))
    for pieces in flat.blocks(chosen):
        first, last = pieces[0], pieces[-1]
        part = slice(int(flat.starts[first.number]) + first.start, int(flat.starts[last.number]) + last.stop)
        values, into, views = {}, {}, {}
        for name in program.touched:
            if name in flat.tensors:
                values[name] = flat.tensors[name][part]
                into[name] = values[name]
            elif name in lists:
                dtype = program.tensors[name]
                values[name] = SCRATCH.get(f"run {name}", part.stop - part.start, dtype, flat.kind.device)
                views[name] = _split(values[name], pieces, flat)
                if name in program.read:
                    sources = [_cut(lists[name][position[piece.number]], piece, flat) for piece in pieces]
                    torch._foreach_copy_(views[name], sources)
        for name in work.draws:
            if name in program.read:
                values[name] = _normals(name, flat, pieces, draws[name]).to(flat.kind.dtype)
        into = {name: target for name, target in into.items() if name in program.results}
        results = interpret.run(program, values, scalars, operand=_Spread(flat, pieces), into=into)
        for name, result in results.items():
            if name in views:
                targets = [_cut(lists[name][position[piece.number]], piece, flat) for piece in pieces]
                torch._foreach_copy_(targets, _split(result, pieces, flat))


class _Spread:
    """Makes a tensor with one value per element of an array with one value per member."""

    def __init__(self, flat: Flat, pieces: Sequence[Piece]) -> None:
        self.flat = flat
        self.numbers = [piece.number for piece in pieces]
        self.sizes = torch.tensor([piece.stop - piece.start for piece in pieces], device=flat.kind.device)

    def __call__(self, values: NDArray[np.float64]) -> Tensor:
        each = torch.from_numpy(np.ascontiguousarray(values[self.numbers])).to(self.sizes.device, self.flat.kind.dtype)
        return each.repeat_interleave(self.sizes)


def _split(vector: Tensor, pieces: Sequence[Piece], flat: Flat) -> list[Tensor]:
    """Parts of a block's vector, in the shape of the member where a piece is the whole of it."""
    parts = vector.split_with_sizes([piece.stop - piece.start for piece in pieces])
    return [
        part
        if piece.stop - piece.start != flat.sizes[piece.number] or part.shape == flat.shapes[piece.number]
        else part.view(flat.shapes[piece.number])
        for part, piece in zip(parts, pieces, strict=True)
    ]


def _cut(tensor: Tensor, piece: Piece, flat: Flat) -> Tensor:
    """The part of a member's tensor that a piece has."""
    if piece.stop - piece.start == flat.sizes[piece.number]:
        return tensor
    return tensor.reshape(-1)[piece.start : piece.stop]  # weights that are written to are contiguous here


def _normals(name: str, flat: Flat, pieces: Sequence[Piece], draw: Draw) -> Tensor:
    """The noise of a block, flat and float32, in a buffer that the next call with this name overwrites."""
    total = sum(piece.stop - piece.start for piece in pieces)
    eps = SCRATCH.get(name, total, torch.float32, flat.kind.device)
    if flat.kind.is_run:
        places = []
        for number, start, stop in pieces:
            first, whole = flat.whole[number]
            places.append((flat.members[number].noise_index, first + start, stop - start, whole))
        noise.fill_runs(eps, places, seed=draw.seed, step=draw.step, sample=draw.pair, scratch=SCRATCH)
    else:
        for part, (number, _, _) in zip(_split(eps, pieces, flat), pieces, strict=True):
            full_shape, offset = place(flat.parameters[number])
            index, shape = flat.members[number].noise_index, flat.shapes[number]
            out = part.view(shape)
            stream = (draw.seed, draw.step, draw.pair, index)
            noise.normal(*stream, shape, offset=offset, full_shape=full_shape, out=out, scratch=SCRATCH)
    return eps.neg_() if draw.negative else eps


@cache
def kernel_of(work: Pass, weights: torch.dtype, real: torch.dtype, *, asked: bool) -> Kernel | None:
    """The kernel of a pass, compiled and compared once; ``None`` if there is none.

    Args:
        work: The pass.
        weights: Dtype of the weights.
        real: Dtype of the state.
        asked: Whether the user asked for kernels, and is warned once, with the reason, if there is none.
    """
    if not native.has_compiler():
        found: Kernel | str = "needs a C++ compiler, found none: going on without it"
    else:
        found = _compiled(work, weights, real)
    if not isinstance(found, str):
        return found
    if asked:
        warnings.warn(f"compile=True {found}", RuntimeWarning, stacklevel=2)
    return None


@cache
def _compiled(work: Pass, weights: torch.dtype, real: torch.dtype) -> Kernel | str:
    """A kernel, or the reason why there is none."""
    without = f"goes on without the {work.kind} kernel of {type(work.rule).__name__}"
    if weights not in cpp.TYPES:
        return f"{without}: weights of {weights} have none"
    program = program_of(work, weights, real)
    try:
        function = native.load(cpp.source(program, work.draws, real)).run
    except (native.CompilationError, NotElementwise) as error:
        return f"{without}: {error}"
    function.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 3, ctypes.c_int]

    def kernel(runs: NDArray[np.int64], numbers: NDArray[np.float64], words: NDArray[np.int64], numel: int) -> None:
        threads = 1 if numel <= noise.ALONE else torch.get_num_threads()
        function(len(runs), runs.ctypes.data, numbers.ctypes.data, words.ctypes.data, threads)

    found, expected = _trial(work, program, real, kernel)
    for name, value in expected.items():
        if not torch.allclose(found[name].float(), value.float(), rtol=1e-2 if weights != real else 1e-3, atol=1e-5):
            return f"{without}: it gives other numbers than PyTorch's operations for {name!r}"
    return kernel


def _trial(
    work: Pass, program: Program, real: torch.dtype, kernel: Kernel
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """Results of a kernel and of PyTorch's operations on a small problem: three runs, one of them in two tiles."""
    sizes = (5, noise.TILE + 70, 130)
    starts = np.cumsum([0, *sizes[:-1]])
    generator = torch.Generator().manual_seed(1)

    def some(dtype: torch.dtype) -> Tensor:
        return torch.rand(sum(sizes), generator=generator, dtype=torch.float64).add_(0.1).to(dtype)

    values = {name: some(dtype) for name, dtype in program.tensors.items() if name not in work.draws}
    if work.mean == "weights" and work.stored:
        values["mean"] = values["weights"].to(real, copy=True)
    known = {"num_data": 50.0, "initial_precision": 20.0, "prior_precision": 3.0, "step": 4.0, "new_step": 5.0}
    numbers = {name: known.get(name, 0.25) for name in program.numbers}
    draws = {"eps": Draw(5, 3, 1, False), "next_eps": Draw(5, 4, 0, False)}
    inputs = dict(values)
    for name in work.draws:
        draw = draws[name]
        parts = [noise.normal(draw.seed, draw.step, draw.pair, i, (size,)) for i, size in enumerate(sizes)]
        inputs[name] = torch.cat(parts).to(real)
    with torch.no_grad():
        results = interpret.run(program, inputs, interpret.numbers_of_body(program, numbers))
    expected = {name: result.to(program.tensors[name]).clone() for name, result in results.items()}
    names = cpp.columns(program, work.draws)
    runs = np.zeros((len(sizes), cpp.FIXED + len(names)), dtype=np.int64)
    for row, (index, size) in zip(runs, enumerate(sizes), strict=True):
        row[: cpp.FIXED] = 0, size, noise.lanes_of(size), index, 0
        row[cpp.FIXED :] = [values[n].data_ptr() + int(starts[index]) * values[n].element_size() for n in names]
    words = np.array([5, 0, 3, 1, 4, 0, 0], dtype=np.int64)
    kernel(runs, np.array([list(numbers.values())]), words, sum(sizes))
    return {name: values[name] for name in expected}, expected


def weights_of(flat: Flat, chosen: NDArray[np.int64]) -> list[Tensor]:
    """The local weights of some members, without gradients."""
    parameters = flat.parameters if len(chosen) == len(flat.members) else [flat.parameters[i] for i in chosen]
    return [local(parameter) for parameter in parameters] if flat.is_sharded else list(parameters)
