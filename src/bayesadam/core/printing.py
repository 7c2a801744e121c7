"""What the printers of C++ and of Triton share: the table of runs, and expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from bayesadam.core.record import Program

Expression: TypeAlias = Callable[..., str]
"""Text of an operation, from the type in which it is computed and the texts of its operands."""

FIXED = 7
"""Number of columns of a run before its addresses: first element, number of elements, lanes of a tile of noise, index
of the parameter, the row of its numbers (in C++) or its number in the flat, where its counters are (in Triton), and the
two halves of its seed.
"""


def columns(program: Program, draws: Sequence[str]) -> tuple[str, ...]:
    """Names of the tensors whose addresses a row has, in order."""
    return tuple(name for name in program.touched if name not in draws)


def infix(symbol: str) -> Expression:
    """Two operands with a symbol in between."""
    return lambda kind, a, b: f"{a} {symbol} {b}"


def call(name: str) -> Expression:
    """A function of all operands."""
    return lambda kind, *args: f"{name}({', '.join(args)})"


COMMON: dict[str, Expression] = {
    "add": infix("+"),
    "sub": infix("-"),
    "mul": infix("*"),
    "neg": lambda kind, a: f"-{a}",
    "gt": infix(">"),
    "lt": infix("<"),
    "ge": infix(">="),
    "le": infix("<="),
    "eq": infix("=="),
    "ne": infix("!="),
    "logical_and": infix("&"),
    "logical_or": infix("|"),
    "logical_not": lambda kind, a: f"{a} == 0",
    "_to_copy": lambda kind, a: a,
}
"""Operations that are written the same way in both languages."""
