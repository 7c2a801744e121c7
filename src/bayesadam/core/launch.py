"""Running a pass over the members of a flat: by one compiled kernel, or by PyTorch's operations.

Kernels are in C++ on a CPU and in Triton on a GPU. Their results are those of PyTorch's operations up to rounding,
which is checked before the first use of a kernel. Where there is no kernel (another device or dtype, no compiler),
PyTorch's operations are used.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam import native, noise
from bayesadam.core import cpp, eager, gpu, interpret
from bayesadam.core.eager import Draws, Lists
from bayesadam.core.flat import Draw, Flat
from bayesadam.core.layout import Layout
from bayesadam.core.passes import PER_WEIGHT, Pass
from bayesadam.core.printing import FIXED, columns
from bayesadam.core.record import NotElementwise, Program, record
from bayesadam.native import device as devices

Compiled: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], int], None]
"""Compiled function of a table of runs, a row of numbers for every one of its groups, the words that identify the
noise, and the number of elements.
"""
_NOTHING = Draw(0, 0, False)
_SEED = 5
"""Seed of the noise in trials of kernels."""


class Launch:
    """A pass over the members of a flat: all that is the same in every step, decided once.

    Args:
        layout: The flats.
        flat: The flat.
        kind: Kind of the :class:`~bayesadam.core.passes.Pass`.
        compiles: The hyper-parameter ``compile``.
        entries: Further entries of the pass, by name.

    Attributes:
        draws: Names of the noise of the pass.
        kernel: Its kernel; ``None`` if PyTorch's operations run it.
        program: Its recording.
        columns: Names of the tensors whose addresses are in the table, after the ``FIXED`` columns.
        table: The table of a kernel, with the addresses of the flat's vectors.
        buffers: Memory of a kernel on a GPU.
    """

    def __init__(self, layout: Layout, flat: Flat, kind: str, compiles: bool, entries: Mapping[str, Any]) -> None:
        of = flat.kind
        work = Pass(
            layout.rule,
            kind,
            of.statics,
            per_weight=PER_WEIGHT if of.per_weight else (),
            has_prior="prior_precision" in flat.groups[0],
            default_start=of.default_start,
            guarded=flat.on_device and kind == "update",
            **entries,
        )
        self.draws, self.kernel = work.draws, None
        if compiles and of.is_run:
            self.kernel = kernel_of(work, of.weights, of.dtype, of.device)
        self.program = program_of(work, of.weights, of.dtype)
        self.columns = columns(self.program, self.draws)
        if self.kernel is not None:
            addresses = np.zeros((len(flat.members), len(self.columns)), dtype=np.int64)
            for column, name in enumerate(self.columns):
                if name in flat.tensors:
                    vector = flat.tensors[name]
                    addresses[:, column] = vector.data_ptr() + vector.element_size() * flat.starts
            self.table, self.buffers = np.concatenate([flat.rows, addresses], axis=1), gpu.Buffers()


def run(
    layout: Layout,
    flat: Flat,
    kind: str,
    chosen: NDArray[np.int64],
    numbers: Mapping[str, Any],
    lists: Lists,
    draws: Draws,
    found: Tensor | None = None,
    **entries: Any,
) -> None:
    """Run a pass over some members of a flat; an update also advances their counters.

    Args:
        layout: The flats.
        flat: The flat.
        kind: Kind of the :class:`~bayesadam.core.passes.Pass`.
        chosen: Numbers of the members, in order.
        numbers: Numbers of the pass by name, each a float or an array with one for every member of the flat; without
            the counters.
        lists: Tensors of the chosen members that are not in the flat, by default with their weights.
        draws: Noise by name, ``eps`` and ``next_eps``.
        found: What :class:`~bayesadam.core.device_check.DeviceCheck` found, for a guarded update.
        **entries: Further entries of the pass.
    """
    if not len(chosen):
        return
    compiles = layout.first["compile"]
    key = (kind, compiles, *entries.items())
    launch = flat.launches.get(key)
    if launch is None:
        launch = flat.launches[key] = Launch(layout, flat, kind, compiles, entries)
    is_whole = len(chosen) == len(flat.members)
    lists = {"weights": flat.weights if is_whole else flat.weights.of(chosen), **lists}
    program, kernel = launch.program, cast(Any, launch.kernel)
    skip, on_gpu = False, isinstance(kernel, gpu.Kernels)
    if not on_gpu:
        skip = found is not None and bool((found != devices.NONE).any())
        numbers = {**numbers, **flat.before(), "skip": float(skip)}
    if kernel is None:
        eager.run(program, flat, chosen, numbers, lists, draws)
    else:
        orders = _orders([lists[name].tensors for name in kernel.reordered]) if on_gpu else ()
        table, copies = _table(launch, chosen, lists, orders)
        words = _words(launch.draws, draws)
        if on_gpu:
            if copies and (devices.is_refilling() or devices.is_capturing(kernel.device)):
                raise RuntimeError("parameters and gradients must be contiguous in a graph, got others")
            table[:, 4] = chosen
            table = np.concatenate([table, np.array(orders, dtype=np.int64)], axis=1)
            kernel(launch.buffers, table, _rows(kernel.inputs, numbers, chosen), words, flat.numbers, found)
        else:
            rows = _rows(program.numbers, numbers, chosen)
            table[:, 4] = np.arange(len(chosen)) if len(rows) > 1 else 0
            kernel(np.ascontiguousarray(table), rows, words, int(flat.sizes[chosen].sum()))
        if "weights" in program.results and not (on_gpu and devices.is_capturing(kernel.device)):
            weights = list(lists["weights"].tensors)
            for target, copy in copies:
                if any(target is each for each in weights):
                    target.copy_(copy)
            torch.autograd.graph.increment_version(weights)
    if kind == "update" and not on_gpu and not skip:
        flat.advance(chosen, layout.rule, numbers)


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


def _table(
    launch: Launch, chosen: NDArray[np.int64], lists: Lists, orders: Sequence[tuple[int, int]] = ()
) -> tuple[NDArray[np.int64], list[tuple[Tensor, Tensor]]]:
    """The table of the runs of a pass with their addresses, and copies of the tensors whose memory is not in the order
    of their elements (but for those whose order is in ``orders``).
    """
    table = launch.table if len(chosen) == len(launch.table) else launch.table[chosen]
    copies: list[tuple[Tensor, Tensor]] = []
    for column, name in enumerate(launch.columns, FIXED):
        if name in lists:
            (tensors, addresses, is_plain), dtype = lists[name], launch.program.tensors[name]
            if not is_plain or name == "collected":
                known = orders if name in gpu.REORDERED and orders else [(0, 0)] * len(tensors)
                tensors = [
                    tensor if channels and tensor.dtype is dtype else _flattened(tensor, dtype, copies)
                    for tensor, (_, channels) in zip(tensors, known, strict=True)
                ]
                addresses = list(map(Tensor.data_ptr, tensors))
            table[:, column] = addresses
    return table, copies


def _orders(lists: Sequence[Sequence[Tensor]]) -> list[tuple[int, int]]:
    """Numbers of positions and of channels of weights and gradients that have the channels last in memory, and zeros
    for others.
    """
    if all(all(map(Tensor.is_contiguous, tensors)) for tensors in lists):
        return [(0, 0)] * len(lists[0])
    return [devices.order_of(*tensors) or (0, 0) for tensors in zip(*lists, strict=True)]


def _rows(names: Sequence[str], numbers: Mapping[str, Any], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """The named numbers: one row if they are the same for all members, otherwise one for every chosen member."""
    values = list(map(numbers.__getitem__, names))
    if np.ndarray not in map(type, values):
        return np.array([values], dtype=np.float64)
    rows = np.empty((len(chosen), len(values)))
    for column, value in enumerate(values):
        rows[:, column] = value[chosen] if isinstance(value, np.ndarray) else value
    return rows


def _words(names: Sequence[str], draws: Draws) -> NDArray[np.int64]:
    """The words that identify the noise with these names: see ``gpu.WORDS``."""
    this = draws["eps"] if "eps" in names else _NOTHING
    following = draws["next_eps"] if "next_eps" in names else _NOTHING
    signs = int(this.negative) | int(following.negative) << 1
    words = [this.step, this.number, following.step, following.number, signs]
    return np.array(words, dtype=np.int64)


def _flattened(tensor: Tensor, dtype: torch.dtype, copies: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The tensor itself, or a copy with the given dtype and in the order of its elements; the copy is recorded."""
    if tensor.is_contiguous() and tensor.dtype is dtype:
        return tensor
    copies.append((tensor, tensor.to(dtype, memory_format=torch.contiguous_format, copy=True)))
    return copies[-1][1]


@cache
def kernel_of(
    work: Pass, weights: torch.dtype, real: torch.dtype, device: torch.device
) -> Compiled | gpu.Kernels | None:
    """The kernel of a pass, compiled and compared once; ``None`` if there is none, with one warning of the reason.

    Args:
        work: The pass.
        weights: Dtype of the weights.
        real: Dtype of the state.
        device: Device of both.
    """
    kernel: Compiled | gpu.Kernels | str | None = None
    if devices.is_available(device):
        kernel = _in_triton(work, weights, real, device)
    elif device.type == "cpu":
        kernel = _compiled(work, weights, real)
    if not isinstance(kernel, str):
        return kernel
    name = f"{work.kind} kernel of {type(work.rule).__name__}"
    warnings.warn(f"training goes on without the {name}: {kernel}", RuntimeWarning, stacklevel=2)
    return None


@cache
def _compiled(work: Pass, weights: torch.dtype, real: torch.dtype) -> Compiled | str | None:
    """A kernel in C++, or the reason why there is none; ``None`` if nothing can be compiled here."""
    if weights not in cpp.TYPES:
        return f"weights of {weights} have none"
    program = program_of(work, weights, real)
    try:
        library = native.load(cpp.source(program, work.draws, real))
    except NotElementwise as error:
        return str(error)
    if library is None:
        return None
    library.run.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 3, ctypes.c_int]

    def kernel(runs: NDArray[np.int64], numbers: NDArray[np.float64], words: NDArray[np.int64], numel: int) -> None:
        threads = 1 if numel <= noise.ALONE else torch.get_num_threads()
        library.run(len(runs), runs.ctypes.data, numbers.ctypes.data, words.ctypes.data, threads)

    def call(runs: NDArray[np.int64], numbers: Mapping[str, float], words: NDArray[np.int64]) -> None:
        runs[:, 4] = 0
        kernel(runs, np.array([[numbers[name] for name in program.numbers]]), words, int(runs[:, 1].sum()))

    return _fault(work, program, real, torch.device("cpu"), call) or kernel


@cache
def _in_triton(work: Pass, weights: torch.dtype, real: torch.dtype, device: torch.device) -> gpu.Kernels | str:
    """A kernel in Triton, or the reason why there is none."""
    program = program_of(work, weights, real)
    try:
        kernel = gpu.Kernels(program, work.draws, real, device)
        return _fault(work, program, real, device, kernel.call) or kernel
    except Exception as error:  # Triton and its compiler raise many kinds of errors
        return f"{type(error).__name__}: {error}"


def _fault(
    work: Pass, program: Program, real: torch.dtype, device: torch.device, call: Callable[..., Any]
) -> str | None:
    """How a kernel's results differ from those of PyTorch's operations, if they do."""
    rtol = 1e-3 if program.tensors["weights"] == real else 1e-2
    for name, (_, found, expected) in trial(work, program, real, device, call).items():
        if not torch.allclose(found, expected, rtol=rtol, atol=1e-5):
            return f"it gives other numbers than PyTorch's operations for {name!r}"
    return None


def trial(
    work: Pass,
    program: Program,
    real: torch.dtype,
    device: torch.device,
    call: Callable[..., Any],
    *,
    sizes: Sequence[int] = (noise.TILE + 70, 5, noise.TILE + 70, 130),
    skip: float = 0.0,
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """A small problem: by name the values before the pass, and the results of a kernel and of PyTorch's operations, in
    float32 or wider.

    Args:
        work: The pass.
        program: Its recording.
        real: Dtype of the state.
        device: Device of the problem.
        call: Function of the table, the numbers by name, and the words, that launches the kernel.
        sizes: Numbers of elements of the runs; by default one begins with a whole tile at an aligned address, and one
            with such a tile at another.
        skip: Whether a guarded update does nothing.
    """
    starts = np.cumsum([0, *sizes[:-1]])
    generator = torch.Generator().manual_seed(1)

    def some(dtype: torch.dtype) -> Tensor:
        return torch.rand(sum(sizes), generator=generator, dtype=torch.float64).add_(0.1).to(device, dtype)

    values = {name: some(dtype) for name, dtype in program.tensors.items() if name not in work.draws}
    if work.mean == "weights":
        values["mean"] = values["weights"].to(real, copy=True)
    known = {"num_data": 50.0, "initial_precision": 20.0, "prior_precision": 3.0, "step": 4.0, "skip": skip}
    numbers = {name: known.get(name, 0.25) for name in program.numbers}
    draws = {"eps": Draw(3, 1, False), "next_eps": Draw(4, 0, False)}
    before = {name: value.clone() for name, value in values.items()}
    for name in work.draws:
        draw = draws[name]
        parts = [noise.normal(_SEED, draw.step, draw.number, i, (n,), device=device) for i, n in enumerate(sizes)]
        before[name] = torch.cat(parts).to(real)
    with torch.no_grad():
        expected = interpret.run(program, before, interpret.numbers_of_body(program, numbers))
    names = columns(program, work.draws)
    runs = np.zeros((len(sizes), FIXED + len(names)), dtype=np.int64)
    for row, (index, size) in zip(runs, enumerate(sizes), strict=True):
        row[:FIXED] = 0, size, noise.lanes_of(size), index, index, _SEED, 0
        row[FIXED:] = [values[n].data_ptr() + int(starts[index]) * values[n].element_size() for n in names]
    call(runs, numbers, _words(work.draws, draws))
    wide = {name: torch.promote_types(program.tensors[name], torch.float32) for name in expected}
    return {
        name: (before[name].to(wide[name]), values[name].to(wide[name]), value.to(program.tensors[name]).to(wide[name]))
        for name, value in expected.items()
    }
