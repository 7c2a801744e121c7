"""Element-wise PyTorch code as a list of operations, recorded by running it once on a few numbers.

A rule is therefore defined once, in Python. Operations on tensors with an axis are the body, which is computed for
every weight; those on 0-d tensors, the hyper-parameters, are the header, which is computed once in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

CONSTANTS: dict[str, Callable[..., Any]] = {
    "zeros_like": lambda *rest: 0.0,
    "ones_like": lambda *rest: 1.0,
    "full_like": lambda value, *rest: value,
    "zero": lambda *rest: 0.0,
    "fill": lambda value, *rest: value,
}
"""Operations that make a constant, and the function of their further arguments that gives it."""
_SAME = ("detach", "alias", "lift_fresh", "clone", "expand", "view")


def _clamped(a: Tensor, low: Any = None, high: Any = None) -> Tensor:
    for limit, bounded in ((low, torch.maximum), (high, torch.minimum)):
        if limit is not None:
            a = bounded(a, limit if isinstance(limit, Tensor) else torch.full_like(a, limit))
    return a


_LOWERED: dict[str, Callable[..., Tensor]] = {
    "addcmul": lambda a, b, c, value=1: a + value * b * c,
    "addcdiv": lambda a, b, c, value=1: a + value * b / c,
    "clamp": _clamped,
    "clamp_min": _clamped,
    "clamp_max": lambda a, high: _clamped(a, None, high),
    "lerp": lambda a, b, weight: a + weight * (b - a),
    "rsqrt": lambda a: a.sqrt().reciprocal(),
    "sigmoid": lambda a: (1.0 + (-a).exp()).reciprocal(),
    "softplus": lambda a, beta=1.0, threshold=20.0: torch.where(
        a * beta > threshold, a, torch.log1p(torch.exp(a * beta)) / beta
    ),
    "square": lambda a: a * a,
}
"""Operations that are recorded as several simpler ones, so that no printer needs to know them."""


class NotElementwise(TypeError):
    """Raised if code cannot be recorded or printed; the message names the operation."""


class Variable(str):
    """The name of an input or of a result; constants are numbers."""

    __slots__ = ()


def tensor_variable(name: str) -> Variable:
    """The variable of an input with an axis."""
    return Variable(f"x_{name}")


def number_variable(name: str) -> Variable:
    """The variable of a 0-d input."""
    return Variable(f"n_{name}")


@dataclass(frozen=True)
class Operation:
    """``variable = name(*args)`` in a dtype."""

    variable: Variable
    name: str
    args: tuple[Any, ...]
    dtype: torch.dtype


@dataclass
class Program:
    """A recording.

    Attributes:
        tensors: Dtypes of the inputs with an axis, by name.
        numbers: Names of the 0-d inputs.
        header: Operations on numbers, in float64.
        body: Operations on tensors.
        results: Variable with the new value of every tensor that changes, by name.
        counters: Variable of the header with the new value of every number that changes, by name.
    """

    tensors: dict[str, torch.dtype]
    numbers: tuple[str, ...]
    header: list[Operation] = field(default_factory=list)
    body: list[Operation] = field(default_factory=list)
    results: dict[str, Variable] = field(default_factory=dict)
    counters: dict[str, Variable] = field(default_factory=dict)

    @cached_property
    def last_uses(self) -> dict[Variable, int]:
        """Position in the body of the last operation that reads each variable; results are read after the end of the
        body.
        """
        last: dict[Variable, int] = {}
        for place, operation in enumerate(self.body):
            for arg in operation.args:
                if isinstance(arg, Variable):
                    last[arg] = place
        last.update(dict.fromkeys(self.results.values(), len(self.body)))
        return last

    @cached_property
    def read(self) -> tuple[str, ...]:
        """Names of the inputs with an axis whose values are used."""
        used = {arg for operation in self.body for arg in operation.args}
        used.update(self.results.values())
        return tuple(name for name in self.tensors if tensor_variable(name) in used)

    @cached_property
    def numbers_of_body(self) -> tuple[Variable, ...]:
        """Inputs without an axis, and results of the header, that the operations on tensors use, in order."""
        used = {arg for operation in self.body for arg in operation.args}
        inputs = map(number_variable, self.numbers)
        return tuple(name for name in (*inputs, *(operation.variable for operation in self.header)) if name in used)

    @cached_property
    def touched(self) -> tuple[str, ...]:
        """Names of the inputs with an axis that are read or changed."""
        read = self.read
        return tuple(name for name in self.tensors if name in read or name in self.results)


def record(
    function: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Mapping[str, Tensor]],
    tensors: Mapping[str, torch.dtype],
    numbers: Sequence[str],
) -> Program:
    """Run a function of tensors and numbers, and record it.

    Args:
        function: Function from tensors by name and 0-d tensors by name to new values of some of the tensors, by name.
        tensors: Dtypes of the tensors.
        numbers: Names of the numbers.

    Raises:
        NotElementwise: An operation reads a value, or gives a result of another shape.
    """
    program = Program(dict(tensors), tuple(numbers))
    values = {name: torch.full((3,), 0.5, dtype=dtype, device="cpu") for name, dtype in tensors.items()}
    scalars = {name: torch.full((), 0.5, dtype=torch.float64, device="cpu") for name in numbers}
    inputs = [(tensor_variable(name), value) for name, value in values.items()]
    inputs += [(number_variable(name), value) for name, value in scalars.items()]
    recorder = _Recorder(program, inputs)
    with torch.no_grad(), torch.device("cpu"), recorder:  # independent of the default device
        results = function(values, scalars)
    widest = max(values.values(), key=Tensor.element_size)
    for name, value in results.items():
        if name not in scalars and recorder.operand(value) not in recorder.varying:
            with torch.no_grad(), recorder:  # a number, which every weight gets
                value = torch.where(widest == widest, value, widest)
        variable = recorder.operand(value)
        if name in scalars:
            program.counters[name] = variable
        elif variable != tensor_variable(name):
            program.results[name] = variable
    return _without_unused(program)


class _Recorder(TorchDispatchMode):
    """Records operations.

    Attributes:
        varying: Variables that differ between weights. What is computed from numbers alone is a number, whatever its
            shape, and so belongs to the header.
    """

    def __init__(self, program: Program, inputs: Sequence[tuple[Variable, Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.program = program
        self.variables: dict[int, Any] = {id(tensor): variable for variable, tensor in inputs}
        self.varying = {variable for variable, tensor in inputs if tensor.ndim}
        self.alive: list[Tensor] = [tensor for _, tensor in inputs]  # kept alive, so that no other tensor gets its id

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # PyTorch would import its compiler, which takes seconds, to keep it from compiling a recording

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        result = func(*args, **options)
        called = func.overloadpacket.__name__
        name = called.strip("_") if called != "_to_copy" else called
        axes = max((arg.ndim for arg in args if isinstance(arg, Tensor)), default=0)
        if not isinstance(result, Tensor) or result.shape not in ((), (3,)) or result.ndim < axes:
            raise NotElementwise(f"it calls {func}")
        if name in _SAME and result.shape == args[0].shape:
            self._bind(result, self.operand(args[0]))
        elif name in ("empty_like", "empty"):
            self.alive.append(result)  # the first value of a new tensor is what is written to it
        elif name in CONSTANTS:
            self._bind(result, CONSTANTS[name](*args[1:]))
        elif name == "copy":
            self._bind(args[0], self.operand(args[1]))
        else:
            target = args[0] if called.endswith("_") else options.pop("out", result)
            with self:
                if "alpha" in options:
                    args = args[0], options.pop("alpha") * args[1]
                lowered = _LOWERED[name](*args, **options) if name in _LOWERED else None
            if options and lowered is None and name != "_to_copy":
                raise NotElementwise(f"it calls {func} with {', '.join(options)}")
            self._bind(target, self._operation(name, result, args) if lowered is None else self.operand(lowered))
        return result

    def _operation(self, name: str, result: Tensor, args: Sequence[Any]) -> Variable:
        operands = [self.operand(arg) for arg in args]
        if name == "rsub":
            name, operands = "sub", operands[::-1]
        if name == "div" and result.ndim and isinstance(args[1], Tensor) and not args[1].ndim:
            # A division by a number that is the same for all weights is a product, which is much faster.
            name, operands[1] = "mul", self._append("reciprocal", [operands[1]], torch.float64)
        return self._append(name, operands, result.dtype)

    def _append(self, name: str, operands: Sequence[Any], dtype: torch.dtype) -> Variable:
        variable = Variable(f"v{len(self.program.header) + len(self.program.body)}")
        if self.varying.isdisjoint(operands):
            part, dtype = self.program.header, dtype if dtype == torch.bool else torch.float64
        else:
            part = self.program.body
            self.varying.add(variable)
        part.append(Operation(variable, name, tuple(operands), dtype))
        return variable

    def _bind(self, tensor: Tensor, variable: Any) -> None:
        self.alive.append(tensor)
        self.variables[id(tensor)] = variable

    def operand(self, arg: Any) -> Any:
        """The variable of a tensor, or a constant."""
        if not isinstance(arg, Tensor):
            if arg is None or isinstance(arg, bool | int | float | torch.dtype):
                return arg
            raise NotElementwise(f"it gives an operation {arg!r}")
        if id(arg) in self.variables:
            return self.variables[id(arg)]
        if arg.ndim == 0:  # a constant in the code of the rule
            return arg.numpy().item()
        raise NotElementwise("it reads a tensor that is neither an argument nor made of any")


def _without_unused(program: Program) -> Program:
    """Remove operations whose results are not used."""
    needed = {*program.results.values(), *program.counters.values()}
    for part in (program.body, program.header):
        used = []
        for operation in reversed(part):
            if operation.variable in needed:
                needed.update(arg for arg in operation.args if isinstance(arg, Variable))
                used.append(operation)
        part[:] = reversed(used)
    program.numbers = tuple(name for name in program.numbers if number_variable(name) in needed)
    return program
