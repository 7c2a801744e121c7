"""Element-wise PyTorch code as C++: it is run once on a few numbers, and its operations are recorded.

A rule is therefore defined once, in Python. Tensors with an axis become the body of a loop over the weights; 0-d
tensors, the hyper-parameters, are computed once before the loop, in their own precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "bfloat16",
    torch.bool: "bool",
    torch.int64: "int64_t",
}


class NotElementwise(Exception):
    """Raised if code has an operation without a counterpart in a loop over the weights; the message names it."""


@dataclass
class Program:
    """Recorded statements.

    Attributes:
        header: Statements before the loop.
        body: Statements of the loop.
        results: Variables with the final values of the arguments that were changed, by the argument's name.
    """

    header: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)


def record(function: Callable[[], None], arguments: Mapping[str, Tensor]) -> Program:
    """Run a function and record its operations on some tensors, which it changes in place.

    Args:
        function: Function without arguments that reads and writes ``arguments``.
        arguments: Tensors by the names of their C++ variables; all with an axis have the same shape.

    Raises:
        NotElementwise: An operation is not element-wise, or reads a value.
    """
    recorder = _Recorder(arguments)
    with torch.no_grad(), recorder:
        function()
    program = recorder.program
    for name, tensor in arguments.items():
        variable = recorder.variables[id(tensor)]
        if variable != name:
            program.results[name] = variable
    return program


class _Recorder(TorchDispatchMode):
    def __init__(self, arguments: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.program = Program()
        self.variables = {id(tensor): name for name, tensor in arguments.items()}
        self.alive: list[Tensor] = list(arguments.values())  # so that no id is used twice

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        result = func(*args, **options)
        called = func.overloadpacket.__name__
        name = called.rstrip("_")
        if called in ("detach", "alias", "lift_fresh"):
            self._bind(result, self._known(args[0]))
            return result
        if not isinstance(result, Tensor) or (name not in _EXPRESSIONS and name not in _CONSTANTS):
            raise NotElementwise(f"it calls {func}")
        if called in ("empty_like", "empty"):
            self.alive.append(result)  # its first value is what is written to it
            return result
        target = options.pop("out", None)
        if target is None and called.endswith("_"):
            target = args[0]
        where = self.program.body if result.ndim else self.program.header
        kind = TYPES.get(result.dtype)
        if kind is None:
            raise NotElementwise(f"it makes a tensor of {result.dtype}")
        if name in _CONSTANTS:
            text = _number(_CONSTANTS[name](*args[1:]), kind)
        else:
            inside = _common(args) if name in _COMPARISONS else kind
            values = [self._value(arg, inside, result.ndim) for arg in args]
            if name in ("add", "sub") and "alpha" in options:
                options["alpha"] = self._value(options["alpha"], inside, result.ndim)
            if name in ("addcmul", "addcdiv"):
                options = {"value": self._value(options.get("value", 1), inside, result.ndim)}
            if name in ("to_copy", "_to_copy", "copy", "clone"):
                options = {}
            if name == "copy":
                values = values[1:2]
            if name == "div" and result.ndim and isinstance(args[1], Tensor) and not args[1].ndim:
                name, values[1] = "mul", self._reciprocal(values[1], kind)
            text = _EXPRESSIONS[name](inside, *values, **options)
        variable = f"v{len(self.alive)}"
        where.append(f"const {kind} {variable} = static_cast<{kind}>({text});")
        self._bind(result if target is None else target, variable)
        return result

    def _reciprocal(self, number: str, kind: str) -> str:
        """Reciprocal of a number that is the same for all elements, since divisions are much slower than products."""
        variable = f"r{len(self.program.header)}"
        self.program.header.append(f"const {kind} {variable} = static_cast<{kind}>(1) / {number};")
        return variable

    def _bind(self, tensor: Tensor, variable: str) -> None:
        self.alive.append(tensor)
        self.variables[id(tensor)] = variable

    def _known(self, tensor: Tensor) -> str:
        if id(tensor) in self.variables:
            return self.variables[id(tensor)]
        if tensor.ndim == 0:  # a constant of the code
            return _number(tensor.numpy().item(), TYPES[tensor.dtype])
        raise NotElementwise("it reads a tensor that is neither an argument nor made of any")

    def _value(self, arg: Any, kind: str, axes: int) -> str:
        if isinstance(arg, Tensor):
            known = self._known(arg)
            return known if TYPES.get(arg.dtype) == kind else f"static_cast<{kind}>({known})"
        if arg is None:
            return "none"
        if isinstance(arg, bool | int | float):
            return _number(arg, kind)
        raise NotElementwise(f"it gives an operation {arg!r}")


def _number(value: Any, kind: str) -> str:
    if isinstance(value, float) and math.isinf(value):
        text = "INFINITY" if value > 0 else "-INFINITY"
    elif isinstance(value, float) and math.isnan(value):
        text = "NAN"
    else:
        text = repr(value).lower() if isinstance(value, bool) else repr(value)
    return f"static_cast<{kind}>({text})"


def _common(args: Sequence[Any]) -> str:
    """The type in which operands are compared."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    return TYPES[torch.result_type(*args)] if len(args) == 2 else TYPES[tensors[0].dtype]


def _infix(symbol: str) -> Callable[..., str]:
    return lambda kind, a, b: f"{a} {symbol} {b}"


def _call(name: str) -> Callable[..., str]:
    return lambda kind, *args: f"{name}({', '.join(args)})"


def _scaled(symbol: str) -> Callable[..., str]:
    return lambda kind, a, b, alpha=None: (
        f"{a} {symbol} {b}" if alpha is None else f"fused<{kind}>({symbol}{alpha}, {b}, {a})"
    )


def _power(kind: str, a: str, b: str) -> str:
    exponents = {f"static_cast<{kind}>({e})": text for e, text in {"2": f"{a} * {a}", "2.0": f"{a} * {a}"}.items()}
    return exponents.get(b, f"std::pow({a}, {b})")


def _clamp(kind: str, a: str, low: str = "none", high: str = "none") -> str:
    """NaN stays NaN, as in PyTorch."""
    if low != "none":
        a = f"({a} < {low} ? {low} : {a})"
    return a if high == "none" else f"({a} > {high} ? {high} : {a})"


_COMPARISONS = {"gt", "lt", "ge", "le", "eq", "ne"}
_CONSTANTS: dict[str, Callable[..., Any]] = {
    "zeros_like": lambda *rest: 0.0,
    "ones_like": lambda *rest: 1.0,
    "full_like": lambda value, *rest: value,
    "zero": lambda *rest: 0.0,
    "empty_like": lambda *rest: 0.0,
    "fill": lambda value, *rest: value,
}
_EXPRESSIONS: dict[str, Callable[..., str]] = {
    "add": _scaled("+"),
    "sub": _scaled("-"),
    "rsub": lambda kind, a, b: f"{b} - {a}",
    "mul": _infix("*"),
    "div": _infix("/"),
    "neg": lambda kind, a: f"-{a}",
    "reciprocal": lambda kind, a: f"static_cast<{kind}>(1) / {a}",
    "sqrt": _call("std::sqrt"),
    "rsqrt": lambda kind, a: f"static_cast<{kind}>(1) / std::sqrt({a})",
    "square": lambda kind, a: f"{a} * {a}",
    "pow": _power,
    "abs": _call("std::abs"),
    "sign": lambda kind, a: f"({a} > 0) - ({a} < 0)",
    "sgn": lambda kind, a: f"({a} > 0) - ({a} < 0)",
    "exp": _call("std::exp"),
    "expm1": _call("std::expm1"),
    "log": _call("std::log"),
    "log1p": _call("std::log1p"),
    "tanh": _call("std::tanh"),
    "sigmoid": lambda kind, a: f"static_cast<{kind}>(1) / (static_cast<{kind}>(1) + std::exp(-{a}))",
    "softplus": lambda kind, a, beta="1", threshold="20": (
        f"{a} * {beta} > {threshold} ? {a} : std::log1p(std::exp({a} * {beta})) / {beta}"
    ),
    "lerp": lambda kind, a, b, w: (
        f"std::abs({w}) < static_cast<{kind}>(0.5) ? fused<{kind}>({w}, {b} - {a}, {a}) "
        f": fused<{kind}>({w} - 1, {b} - {a}, {b})"
    ),
    "addcmul": lambda kind, a, b, c, value: f"fused<{kind}>({value} * {b}, {c}, {a})",
    "addcdiv": lambda kind, a, b, c, value: f"fused<{kind}>({value}, {b} / {c}, {a})",
    "clamp": _clamp,
    "clamp_min": lambda kind, a, low: _clamp(kind, a, low),
    "clamp_max": lambda kind, a, high: _clamp(kind, a, "none", high),
    "maximum": lambda kind, a, b: f"({a} < {b} || {b} != {b}) ? {b} : {a}",
    "minimum": lambda kind, a, b: f"({a} > {b} || {b} != {b}) ? {b} : {a}",
    "where": lambda kind, test, a, b: f"static_cast<bool>({test}) ? {a} : {b}",
    "gt": _infix(">"),
    "lt": _infix("<"),
    "ge": _infix(">="),
    "le": _infix("<="),
    "eq": _infix("=="),
    "ne": _infix("!="),
    "logical_and": _infix("&&"),
    "logical_or": _infix("||"),
    "logical_not": lambda kind, a: f"!{a}",
    "copy": lambda kind, a: a,
    "clone": lambda kind, a: a,
    "_to_copy": lambda kind, a: a,
}
