"""A recording as C++: one walk over memory for all parameters, with the noise drawn on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bayesadam import native
from bayesadam.core.printing import COMMON, FIXED, Expression, columns, infix
from bayesadam.core.record import NotElementwise, Operation, Program, Variable

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "bfloat16",
    torch.bool: "bool",
    torch.int64: "int64_t",
}


def source(program: Program, draws: Sequence[str], real: torch.dtype) -> str:
    """Return the C++ source of a recording.

    Args:
        program: The recording; ``draws`` are among its tensors.
        draws: Names of the noise.
        real: Dtype of the state, in which values are compared.

    Raises:
        NotElementwise: An operation has no counterpart.
    """
    names = columns(program, draws)
    header = [f"const double n_{name} = number[{i}];" for i, name in enumerate(program.numbers)]
    header += [_statement(operation, "double") for operation in program.header]
    loads = []
    for name in program.read:
        kind = TYPES[program.tensors[name]]
        place = f"{name}[j - lo]" if name in draws else f"p_{name}[j]"
        loads.append(f"const {kind} x_{name} = static_cast<{kind}>({place});")
    stores = [
        f"p_{name}[j] = static_cast<{TYPES[program.tensors[name]]}>({variable});"
        for name, variable in program.results.items()
    ]
    pointers = []
    for i, name in enumerate(names):
        kind = TYPES[program.tensors[name]]
        const = "" if name in program.results else "const "
        pointers.append(f"{const}{kind}* const p_{name} = reinterpret_cast<{kind}*>(run[{FIXED + i}]) - first;")
    parts = {
        "HEADER": header,
        "POINTERS": pointers,
        "BUFFERS": [f"alignas(64) float {name}[TILE];" for name in draws],
        "NOISE": [_FILLS[name] for name in draws],
        "BODY": [
            *loads,
            *(_statement(operation, TYPES[operation.dtype], TYPES[real]) for operation in program.body),
            *stores,
        ],
        "NUMBERS": [str(len(program.numbers))],
        "COLUMNS": [str(FIXED + len(names))],
    }
    text = native.read("run.cpp")
    for name, lines in parts.items():
        text = text.replace(f"/*{name}*/", "\n".join(lines))
    return text


_FILLS = {
    "eps": "fill_tile(eps, tile, lanes, Key{low, high, step, number_, index}, word[4] & 1 ? -1.0f : 1.0f);",
    "next_eps": (
        "fill_tile(next_eps, tile, lanes, Key{low, high, next_step, next_number, index}, word[4] & 2 ? -1.0f : 1.0f);"
    ),
}


def _statement(operation: Operation, kind: str = "double", compared: str = "double") -> str:
    """One statement; ``kind`` is the type of its result, unless it is a truth value."""
    if operation.name not in _EXPRESSIONS:
        raise NotElementwise(f"it calls {operation.name}")
    kind = "bool" if operation.dtype == torch.bool else kind
    inside = compared if operation.name in _COMPARISONS else kind
    values = [_operand(arg, inside) for arg in operation.args]
    if operation.name == "where":
        values[0] = _operand(operation.args[0], "bool")
    text = _EXPRESSIONS[operation.name](inside, *values)
    return f"const {kind} {operation.variable} = static_cast<{kind}>({text});"


def _operand(arg: Any, kind: str) -> str:
    if isinstance(arg, Variable):
        return f"static_cast<{kind}>({arg})"
    if isinstance(arg, float) and math.isinf(arg):
        text = "__builtin_inf()" if arg > 0 else "-__builtin_inf()"
    elif isinstance(arg, float) and math.isnan(arg):
        text = '__builtin_nan("")'
    else:
        text = repr(arg).lower() if isinstance(arg, bool) else repr(arg)
    return f"static_cast<{kind}>({text})"


def _function(name: str) -> Expression:
    """A function of <cmath>, which the compiler has built in, in double or float."""
    return lambda kind, *args: f"__builtin_{name}{'' if kind == 'double' else 'f'}({', '.join(args)})"


def _power(kind: str, a: str, b: str) -> str:
    if b in (f"static_cast<{kind}>(2)", f"static_cast<{kind}>(2.0)"):
        return f"{a} * {a}"
    return _function("pow")(kind, a, b)


_COMPARISONS = {"gt", "lt", "ge", "le", "eq", "ne"}
_EXPRESSIONS: dict[str, Expression] = {
    **COMMON,
    "div": infix("/"),
    "reciprocal": lambda kind, a: f"static_cast<{kind}>(1) / {a}",
    "pow": _power,
    "abs": _function("fabs"),
    "sign": lambda kind, a: f"({a} > 0) - ({a} < 0)",
    **{name: _function(name) for name in ("sqrt", "exp", "expm1", "log", "log1p", "cos", "sin", "tanh")},
    "maximum": lambda kind, a, b: f"({a} < {b} || {b} != {b}) ? {b} : {a}",
    "minimum": lambda kind, a, b: f"({a} > {b} || {b} != {b}) ? {b} : {a}",
    "where": lambda kind, test, a, b: f"{test} ? {a} : {b}",
}
