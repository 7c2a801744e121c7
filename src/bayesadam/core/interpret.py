"""Running a recording by PyTorch's operations, which write to the memory of results that are no longer needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam.core.record import NotElementwise, Operation, Program, Variable, number_variable, tensor_variable
from bayesadam.core.rule import Number

Operand = Callable[[Any], Any]


def numbers_of_body(program: Program, numbers: Mapping[str, Number]) -> dict[str, Any]:
    """The numbers that the operations on tensors use, by variable: inputs of the recording, and results of its header.

    Args:
        program: The recording.
        numbers: Its numbers by name, each a float or an array.
    """
    values: dict[str, Any] = {number_variable(name): np.float64(numbers[name]) for name in program.numbers}
    with np.errstate(all="ignore"):
        for operation in program.header:
            values[operation.variable] = _header(operation, values)
    for variable, value in values.items():
        if not isinstance(value, np.ndarray):
            values[variable] = bool(value) if value.dtype == bool else float(value)
    return values


def run(
    program: Program,
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
    *,
    operand: Operand | None = None,
    into: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Run a recording.

    Args:
        program: The recording.
        tensors: Its inputs with an axis, by name.
        numbers: What :func:`numbers_of_body` returns.
        operand: Function that makes tensors of arrays of numbers, which broadcast with the inputs.
        into: Tensors for results, by name; each may be the input of that name. Without it, results are new tensors.

    Returns:
        Results by name, those of ``into`` among them.
    """
    values = dict(numbers)
    if operand is not None:
        values.update({name: operand(value) for name, value in numbers.items() if isinstance(value, np.ndarray)})
    values.update({tensor_variable(name): tensors[name] for name in program.read})
    targets = {} if into is None else _targets(program, into)
    last, free = program.last_uses, set[Any]()  # ``free``: results of this run whose memory may be used again
    for place, operation in enumerate(program.body):
        arguments = [values[arg] if isinstance(arg, Variable) else arg for arg in operation.args]
        dead = [arg for arg in operation.args if arg in free and last[arg] == place]
        out = targets.get(operation.variable)
        if out is None and dead and into is not None:
            out = values[dead[0]]
        if out is not None and (operation.name not in _OUT or out.dtype != operation.dtype):
            out = None
        values[operation.variable] = _body(operation, arguments, out)
        free.difference_update(dead)
        if operation.variable not in targets:
            free.add(operation.variable)
    results = {name: values[variable] for name, variable in program.results.items()}
    for name, target in (into or {}).items():
        if name in results and results[name] is not target:
            target.copy_(results[name])
    return results


def _targets(program: Program, into: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Results that may be written at once: those that overwrite an input after its last use, or no input at all."""
    places = {operation.variable: place for place, operation in enumerate(program.body)}
    outputs = list(program.results.values())
    found: dict[str, Tensor] = {}
    for name, variable in program.results.items():
        made = places.get(variable, -1)
        read = program.last_uses.get(tensor_variable(name), -1)
        if name in into and made >= max(0, read) and outputs.count(variable) == 1:
            found[variable] = into[name]
    return found


def _header(operation: Operation, values: Mapping[str, Any]) -> Number:
    function = getattr(np, _NUMPY.get(operation.name, operation.name), None)
    if function is None:
        raise NotElementwise(f"it calls {operation.name} with numbers")
    arguments = [values[arg] if isinstance(arg, Variable) else arg for arg in operation.args]
    return np.asarray(function(*arguments))[()]


def _body(operation: Operation, arguments: list[Any], out: Tensor | None) -> Tensor:
    name = operation.name
    if name == "_to_copy":
        result: Tensor = arguments[0].to(operation.dtype)
        return result
    if name in ("maximum", "minimum") and not isinstance(arguments[1], Tensor):
        name = "clamp_min" if name == "maximum" else "clamp_max"
    if name in ("add", "mul") and not isinstance(arguments[0], Tensor):
        arguments.reverse()
    if not isinstance(arguments[0], Tensor):
        like = next(a for a in arguments if isinstance(a, Tensor))
        dtype = torch.bool if name == "where" else like.dtype
        arguments[0] = torch.as_tensor(arguments[0], dtype=dtype, device=like.device)
    options: dict[str, Any] = {} if out is None else {"out": out}
    result = getattr(torch, name)(*arguments, **options)
    return result


_OUT = {
    *("add", "sub", "mul", "div", "neg", "reciprocal", "sqrt", "pow", "abs", "exp", "expm1", "log", "log1p", "tanh"),
    *("maximum", "minimum"),
}
"""Operations that can write to given memory."""
_NUMPY = {
    **{"sub": "subtract", "mul": "multiply", "div": "divide", "neg": "negative", "pow": "power", "_to_copy": "asarray"},
    **{"gt": "greater", "lt": "less", "ge": "greater_equal", "le": "less_equal", "eq": "equal", "ne": "not_equal"},
}
"""NumPy's names of operations, where they are not PyTorch's."""
