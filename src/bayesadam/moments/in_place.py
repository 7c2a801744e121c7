"""Operations in place, such as ``x += y`` or ``relu(x, inplace=True)``, in a network that is traced.

Moments are propagated by rules that change nothing in place. So whatever uses a value after an operation has changed it
must use the result of the operation.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx, nn

from bayesadam.modules.fsdp import kind_of
from bayesadam.moments.replacements import unsupported
from bayesadam.moments.rules import FUNCTIONS, METHODS, VIEWING, VIEWS

OPERATORS = (operator.iadd, operator.isub, operator.imul, operator.itruediv)


class InPlaceProxy(fx.Proxy):
    """A value that is traced; unlike its base class it records ``x += y`` as what it is, and not as ``x = x + y``."""

    def _record(self, function: Callable[[Any, Any], Any], other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self._record(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        return self._record(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        return self._record(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self._record(operator.itruediv, other)


def redirect(nodes: Sequence[fx.Node], modules: Mapping[str, nn.Module]) -> None:
    """Let later uses of a value that a step changes in place use the result of that step.

    Args:
        nodes: The steps in order, without those that compute plain values.
        modules: The modules of the network, by name.

    Raises:
        ValueError: Another value that may share its memory, such as a view, is used later.
    """
    places = {node: place for place, node in enumerate(nodes)}
    memory: dict[fx.Node, fx.Node] = {}
    """For each value the first one that may have the same memory."""
    for node in nodes:
        changing = _changes_its_input(node, modules)
        if not changing and not _is_view(node, modules):
            memory[node] = node
            continue
        changed = node.all_input_nodes[0]
        memory[node] = memory.get(changed, changed)

        def is_later(user: fx.Node, place: int = places[node]) -> bool:
            return places.get(user, -1) > place

        if changing:
            changed.replace_all_uses_with(node, delete_user_cb=is_later)
            for other, base in memory.items():
                if base is memory[node] and other is not node and any(map(is_later, other.users)):
                    raise unsupported(
                        f"a later use of the value {other.name!r}, which may share memory with {changed.name!r}, which "
                        f"{node.name!r} changes in place"
                    )


def _changes_its_input(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a step writes its result into its first input."""
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    if node.target in OPERATORS:
        return True
    rule = rule_of(node)
    given = {} if rule is None else dict(zip(inspect.signature(rule).parameters, node.args, strict=False))
    return bool({**given, **node.kwargs}.get("inplace", False))


def _is_view(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether the value of a step may share the memory of its input."""
    operation = operation_of(node, modules)
    return operation in VIEWING or operation in VIEWS


def operation_of(node: fx.Node, modules: Mapping[str, nn.Module]) -> Any:
    """The type of a layer, or the rule of a function or method; ``None`` for anything else."""
    return kind_of(modules[str(node.target)]) if node.op == "call_module" else rule_of(node)


def rule_of(node: fx.Node) -> Callable[..., Any] | None:
    """The rule of a function or method, if there is one."""
    if node.op == "call_method":
        return METHODS.get(str(node.target))
    return FUNCTIONS.get(node.target) if node.op == "call_function" else None
