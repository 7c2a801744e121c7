"""Running a pass over the members of a flat by PyTorch's operations: in blocks on a CPU, whose numbers stay in the
cache, and on whole flats elsewhere, where every operation is a launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam import noise
from bayesadam.core import interpret
from bayesadam.core.flat import Draw, Flat, Piece
from bayesadam.core.record import Program
from bayesadam.native import device as devices
from bayesadam.native.memory import Placed

Lists: TypeAlias = Mapping[str, Placed]
"""Tensors of single members that are not in a flat, by name: ``weights``, ``grad`` and ``collected``."""
Draws: TypeAlias = Mapping[str, Draw]


def run(
    program: Program,
    flat: Flat,
    chosen: NDArray[np.int64],
    numbers: Mapping[str, Any],
    lists: Lists,
    draws: Draws,
) -> None:
    """Run a pass over some members of a flat.

    Args:
        program: Recording of the pass.
        flat: The flat.
        chosen: Numbers of the members, in order.
        numbers: Numbers of the pass by name.
        lists: Tensors of the chosen members.
        draws: Noise by name.
    """
    scalars = interpret.numbers_of_body(program, numbers)
    position = dict(zip(chosen.tolist(), range(len(chosen)), strict=True))
    for pieces in flat.blocks(chosen):
        first, last = pieces[0], pieces[-1]
        part = slice(int(flat.starts[first.number]) + first.start, int(flat.starts[last.number]) + last.stop)
        values = {name: vector[part] for name, vector in flat.tensors.items()}
        into = {name: values[name] for name in program.results if name in values}
        for name in program.read:
            if name in lists:
                dtype = program.tensors[name]
                values[name] = torch.empty(part.stop - part.start, dtype=dtype, device=flat.kind.device)
                sources = [_cut(lists[name].tensors[position[piece.number]], piece, flat) for piece in pieces]
                torch._foreach_copy_(_split(values[name], pieces, flat), sources)
        drawn = {name: draw for name, draw in draws.items() if name in program.read}
        values.update(_normals(flat, pieces, part, drawn))
        results = interpret.run(program, values, scalars, operand=partial(_spread, flat, pieces), into=into)
        for name, result in results.items():
            if name in lists:
                targets = [_cut(lists[name].tensors[position[piece.number]], piece, flat) for piece in pieces]
                torch._foreach_copy_(targets, _split(result, pieces, flat))


def _spread(flat: Flat, pieces: Sequence[Piece], values: NDArray[np.float64]) -> Tensor:
    """A tensor with one value per element, from an array with one value per member."""
    each = np.repeat(values[[piece.number for piece in pieces]], [piece.stop - piece.start for piece in pieces])
    dtype = np.float64 if flat.kind.dtype == torch.float64 else np.float32
    return devices.upload(each.astype(dtype), flat.kind.device)


def _split(vector: Tensor, pieces: Sequence[Piece], flat: Flat) -> list[Tensor]:
    """Parts of the vector of a block. A piece that is a whole member has the member's shape."""
    parts = vector.split_with_sizes([piece.stop - piece.start for piece in pieces])
    return [
        part
        if piece.stop - piece.start != flat.sizes[piece.number] or part.shape == flat.shapes[piece.number]
        else part.view(flat.shapes[piece.number])
        for part, piece in zip(parts, pieces, strict=True)
    ]


def _cut(tensor: Tensor, piece: Piece, flat: Flat) -> Tensor:
    """The part of a member's tensor that belongs to a piece."""
    if piece.stop - piece.start == flat.sizes[piece.number]:
        return tensor
    return tensor.reshape(-1)[piece.start : piece.stop]  # weights that are written to are contiguous here


def _normals(flat: Flat, pieces: Sequence[Piece], part: slice, draws: Draws) -> dict[str, Tensor]:
    """The noise of a block by name, flat and in the dtype of the state.

    Where PyTorch's operations work on whole flats, the latest noise is kept until there is another, since the passes of
    a step have it in common and drawing it takes most operations.
    """
    found: dict[str, Tensor] = {}
    by_seed = [
        (seed, [run for piece in alike for run in _runs(piece, flat)])
        for seed, alike in groupby(pieces, lambda piece: flat.members[piece.number].group["seed"])
    ]
    for name, draw in draws.items():
        if draw in flat.noise:
            found[name] = flat.noise[draw][part]
            continue
        eps = torch.empty(part.stop - part.start, dtype=torch.float32, device=flat.kind.device)
        parts = eps.split_with_sizes([sum(size for _, _, size, _ in runs) for _, runs in by_seed])
        for own, (seed, runs) in zip(parts, by_seed, strict=True):
            noise.fill_runs(own, runs, seed=seed, step=draw.step, sample=draw.number)
        found[name] = (eps.neg_() if draw.negative else eps).to(flat.kind.dtype)
    if flat.is_whole and flat.kind.is_run and found and part == slice(0, flat.numel):
        flat.noise = {draw: found[name] for name, draw in list(draws.items())[-1:]}
    return found


def _runs(piece: Piece, flat: Flat) -> list[noise.Run]:
    """The runs of noise of a piece: a part of one run, or all runs of a whole member."""
    number, start, stop = piece
    return [
        (index, first + start, min(size, stop - start), whole) for index, first, size, whole in flat.noise_runs[number]
    ]
