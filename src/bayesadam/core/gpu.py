"""A recording as kernels of Triton: a header that runs once for each parameter, and one walk over the memory of all
parameters, which also draws the noise.

What :mod:`bayesadam.core.cpp` does in one function is two here, since float64 is slow on many GPUs.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam.core.printing import COMMON, FIXED, Expression, call, columns
from bayesadam.core.record import NotElementwise, Operation, Program, Variable, number_variable, tensor_variable
from bayesadam.core.rule import COUNTERS
from bayesadam.native import device as devices

TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.bfloat16: "tl.bfloat16",
    torch.float16: "tl.float16",
    torch.bool: "tl.int1",
}
REORDERED = ("weights", "grad")
"""Tensors that may be in the memory format ``channels_last``; the last two columns of a row are their numbers of
positions and of channels.
"""
WORDS = 6
"""What the words of a launch are: step and sample of the noise, step and sample of the next
noise, the two signs, and the number of columns of the table of numbers.
"""

_TEXT = """
import triton
import triton.language as tl

from bayesadam.native.tiles import BLOCK, LANES, anything, channels_last, inside, normals, place
from bayesadam.native.tiles import expm1, log1p, power, tanh


@triton.jit
def header(table, words, numbers, counters, found, values):
    row = tl.program_id(0).to(tl.int64)
    number = numbers + row * tl.load(words + 5)
    counter = counters + tl.load(table + row * {columns} + 4) * {width}
    {header}


@triton.jit
def body({arguments}):
    {body}


@triton.jit
def run(parts, table, words, values):
    number, row, tile, lane, lanes, begin = place(parts, table, {columns})
    size = tl.load(row + 1)
    value = values + number * {values}
    {loads}
    whole = (lanes == LANES) & (begin >= 0) & (begin + 4 * LANES <= size) & (channels <= 1)
    if whole & ((({addresses}) & 15) == 0):  # a whole tile, in memory that is read in vectors
        mask = tl.full((BLOCK,), True, tl.int1)
        {aligned}
    else:
        {anywhere}
"""


class Buffers:
    """Memory of a pass on the device. It stays the same from step to step, so that a graph can replay the pass."""

    def __init__(self) -> None:
        self.table = devices.Table()
        self.given = self.values = torch.empty(0)


class Kernels:
    """The kernels of a pass: a header for every member, and one walk over memory for all of them.

    Args:
        program: Recording of the pass.
        draws: Names of its noise.
        real: Dtype of the state.
        device: Device of the kernels.

    Attributes:
        inputs: Names of the numbers that the host gives.
        reordered: Names of the tensors that may have their channels last.
    """

    def __init__(self, program: Program, draws: Sequence[str], real: torch.dtype, device: torch.device) -> None:
        self.program, self.device, self.real = program, device, real
        self.inputs = inputs(program)
        self.reordered = [name for name in REORDERED if name in program.touched]
        self.functions = functions(source(program, draws, real))
        self.nothing = torch.full((devices.PROGRAMS,), devices.NONE, dtype=torch.int32, device=device)

    def __call__(
        self,
        buffers: Buffers,
        table: NDArray[np.int64],
        rows: NDArray[np.float64],
        words: NDArray[np.int64],
        counters: Tensor,
        found: Tensor | None,
    ) -> None:
        """Launch the kernels.

        Args:
            buffers: Memory of the pass for this flat.
            table: The runs.
            rows: The numbers of :attr:`inputs`, a row for all members or one for each.
            words: What names the noise.
            counters: Counters of all members of the flat.
            found: What the check of the gradients found.
        """
        if not devices.is_capturing(self.device):
            self._upload(buffers, table, rows, words)
        if devices.is_refilling():
            return
        if self.program.numbers_of_body or self.program.counters:
            numbers = buffers.given[WORDS:].view(torch.float64)
            found = self.nothing if found is None else found
            given = (buffers.table.both, buffers.given, numbers, counters, found, buffers.values)
            devices.launch(self.functions["header"], len(table), self.device, *given, warps=1)
        walked = (buffers.table.parts, buffers.table.both, buffers.given, buffers.values)
        devices.launch(self.functions["run"], buffers.table.programs, self.device, *walked)

    def call(self, table: NDArray[np.int64], numbers: Mapping[str, float], words: NDArray[np.int64]) -> Tensor:
        """Launch the kernels on a small problem, with the same numbers for all members; return the counters after it.

        Args:
            table: The runs.
            numbers: All numbers of the recording by name.
            words: What names the noise.
        """
        row = [*(numbers.get(name, 0.0) for name in COUNTERS), math.nan]
        counters = torch.tensor([row] * len(table), dtype=torch.float64).to(self.device)
        found = self.nothing.clone()
        found[-1] = 0 if numbers.get("skip") else devices.NONE
        rows = np.array([[numbers[name] for name in self.inputs]], dtype=np.float64)
        table = np.pad(table, ((0, 0), (0, 2)))
        self(Buffers(), table, rows, words, counters, found)
        return counters

    def _upload(
        self, buffers: Buffers, table: NDArray[np.int64], rows: NDArray[np.float64], words: NDArray[np.int64]
    ) -> None:
        """Copy to the device what has changed since the step before, into memory that stays the same."""
        if not np.array_equal(table, buffers.table.rows):
            buffers.table.write(table, devices.programs_of(table), self.device)
            if len(buffers.values) != len(table):
                shape = (len(table), max(1, len(self.program.numbers_of_body)))
                buffers.values = torch.empty(shape, dtype=self.real, device=self.device)
        stride = rows.shape[1] if len(rows) > 1 else 0
        given = np.concatenate([words, [stride], rows.ravel().view(np.int64)])
        buffers.given = devices.upload(given, self.device, buffers.given)


def inputs(program: Program) -> tuple[str, ...]:
    """Names of the numbers that the host gives, in order."""
    return tuple(name for name in program.numbers if name not in (*COUNTERS, "skip"))


def source(program: Program, draws: Sequence[str], real: torch.dtype) -> str:
    """Return the source of a recording in Triton: the functions ``header`` and ``run``.

    Args:
        program: The recording; ``draws`` are among its tensors.
        draws: Names of the noise.
        real: Dtype of the state, in which values are compared.

    Raises:
        NotElementwise: An operation has no counterpart.
    """
    names, uses = columns(program, draws), program.numbers_of_body
    given = {name: f"tl.load(number + {i})" for i, name in enumerate(inputs(program))}
    given |= {name: f"tl.load(counter + {i})" for i, name in enumerate(COUNTERS)}
    given["skip"] = "anything(found).to(tl.float64)"
    dtypes = {number_variable(name): torch.float64 for name in program.numbers}
    header = [f"{number_variable(name)} = {given[name]}" for name in program.numbers]
    header += [_statement(operation, dtypes, torch.float64) for operation in program.header]
    header += [
        f"tl.store(values + row * {len(uses)} + {i}, {variable}.to({TYPES[real]}))" for i, variable in enumerate(uses)
    ]
    header += [f"tl.store(counter + {COUNTERS.index(name)}, {v})" for name, v in program.counters.items()]
    header.append("return")

    is_test = {operation.variable for operation in program.header if operation.dtype == torch.bool}
    dtypes = {variable: torch.bool if variable in is_test else real for variable in uses}
    dtypes |= {tensor_variable(name): dtype for name, dtype in program.tensors.items()}
    noise = [tensor_variable(name) for name in draws]
    at = {name: "moved" if name in REORDERED else "at" for name in names}
    body = [
        f"x_{name} = tl.load(p_{name} + {at[name]}, mask=mask, other=1.0)" for name in names if name in program.read
    ]
    body += [f"{name} = {name}.to({TYPES[real]})" for name in noise]
    body += [_statement(operation, dtypes, real) for operation in program.body]
    body += [
        f"tl.store(p_{name} + {at[name]}, {variable}.to({TYPES[program.tensors[name]]}), mask=mask)"
        for name, variable in program.results.items()
    ]
    arguments = ["at", "moved", "mask", *(f"p_{name}" for name in names), *uses, *noise]

    loads = [f"{v} = tl.load(value + {i})" + " != 0" * (v in is_test) for i, v in enumerate(uses)]
    pointers = {}
    for i, name in enumerate(names):
        pointer = f"tl.pointer_type({TYPES[program.tensors[name]]})"
        pointers[name] = f"a_{name}.to({pointer}) + begin"
        loads.append(f"a_{name} = tl.load(row + {FIXED + i})")
    for i, name in enumerate(("positions", "channels")):
        loads.append(f"{name} = tl.load(row + {FIXED + len(names) + i}).to(tl.int32)")
    if draws:
        loads.append("low, high, index = tl.load(row + 5), tl.load(row + 6), tl.load(row + 3)")
        loads.append("signs = tl.load(words + 4)")
    for name in draws:
        first, bit = (0, 1) if name == "eps" else (2, 2)
        loads.append(f"sign = tl.where((signs & {bit}) != 0, -1.0, 1.0)")
        outputs = ", ".join(f"x_{name}_{k}" for k in range(4))
        words = f"tl.load(words + {first}), tl.load(words + {first + 1})"
        loads.append(f"{outputs} = normals(tile, lane, index, low, high, {words}, sign)")
    aligned = [f"p_{name} = tl.multiple_of({pointer}, 16)" for name, pointer in pointers.items()]
    anywhere = [f"p_{name} = {pointer}" for name, pointer in pointers.items()]
    for k in range(4):
        own = ", ".join(f"{name}_{k}" if name in noise else name for name in arguments[3:])
        aligned += [f"at = {k} * LANES + lane", f"body(at, at, mask, {own})"]
        anywhere.append(f"at = {k} * lanes + lane")
        anywhere.append("moved = channels_last(at, begin, positions, channels)")
        anywhere.append(f"body(at, moved, inside(at, lane, lanes, begin, size), {own})")
    return _TEXT.format(
        addresses=" | ".join(f"(a_{name} + begin * {program.tensors[name].itemsize})" for name in names),
        aligned="\n        ".join(aligned),
        anywhere="\n        ".join(anywhere),
        columns=FIXED + len(names) + 2,
        width=len(COUNTERS) + 1,
        values=len(uses),
        arguments=", ".join(arguments),
        **{name: "\n    ".join(lines) for name, lines in (("header", header), ("body", body), ("loads", loads))},
    )


@cache
def functions(text: str) -> Mapping[str, Any]:
    """The functions of a source, which Triton compiles when they are first launched."""
    name = f"<bayesadam kernel {hash(text):x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # where Triton reads it
    found: dict[str, Any] = {"__name__": "bayesadam.core.gpu.kernels"}
    exec(compile(text, name, "exec"), found)
    return found


def _statement(operation: Operation, dtypes: dict[Variable, torch.dtype], real: torch.dtype) -> str:
    """One statement; the dtype of its result is recorded. ``real`` is the dtype in which values are compared."""
    if operation.name not in _EXPRESSIONS or operation.dtype not in TYPES:
        raise NotElementwise(f"it calls {operation.name}")
    dtype = operation.dtype
    wide = real if dtype == torch.bool else torch.promote_types(dtype, torch.float32)
    if operation.name.startswith("logical"):
        wide = torch.bool
    values = [_operand(arg, wide, dtypes) for arg in operation.args]
    if operation.name == "where":
        values[0] = _operand(operation.args[0], torch.bool, dtypes)
    text = _EXPRESSIONS[operation.name](wide, *values)
    dtypes[operation.variable] = dtype
    return (
        f"{operation.variable} = {text}"
        if dtype in (wide, torch.bool)
        else (f"{operation.variable} = ({text}).to({TYPES[dtype]})")
    )


def _operand(arg: Any, dtype: torch.dtype, dtypes: Mapping[Variable, torch.dtype]) -> str:
    if isinstance(arg, Variable):
        if dtypes[arg] == dtype:
            return str(arg)
        return f"({arg} != 0)" if dtype == torch.bool else f"{arg}.to({TYPES[dtype]})"
    if isinstance(arg, float) and not math.isfinite(arg):
        return f'float("{arg}")'
    return f"({arg!r})" if isinstance(arg, float | int) and arg < 0 else repr(arg)


def _quotient(real: torch.dtype, a: str, b: str) -> str:
    """Rounded correctly, as on a CPU; Triton's own division of float32 is not."""
    return f"tl.div_rn({a}, {b})" if real == torch.float32 else f"({a}) / ({b})"


def _root(real: torch.dtype, a: str) -> str:
    return f"tl.sqrt_rn({a})" if real == torch.float32 else f"tl.sqrt({a})"


def _power(real: torch.dtype, a: str, b: str) -> str:
    if b in ("2", "2.0"):
        return f"{a} * {a}"
    return _root(real, a) if b == "0.5" else f"power({a}, {b})"


_EXPRESSIONS: dict[str, Expression] = {
    **COMMON,
    "div": _quotient,
    "reciprocal": lambda real, a: _quotient(real, "1.0", a),
    "sqrt": _root,
    "pow": _power,
    **{name: call(f"tl.{name}") for name in ("abs", "exp", "log", "cos", "sin")},
    **{name: call(name) for name in ("expm1", "log1p", "tanh")},
    "sign": lambda real, a: f"({a} > 0).to({TYPES[real]}) - ({a} < 0).to({TYPES[real]})",
    "maximum": lambda real, a, b: f"tl.maximum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": lambda real, a, b: f"tl.minimum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)",
    "where": lambda real, test, a, b: f"tl.where({test}, {a}, {b})",
}
