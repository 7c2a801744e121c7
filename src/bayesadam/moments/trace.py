"""The steps of a network's computation, found by tracing it once without data."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, cast

from torch import fx, nn

from bayesadam.modules.calls import has_own_forward
from bayesadam.modules.fsdp import has_hooks, kind_of
from bayesadam.moments.in_place import InPlaceProxy, operation_of, redirect, rule_of
from bayesadam.moments.observer import Observer
from bayesadam.moments.replacements import replacement, unsupported
from bayesadam.moments.rules import COMBINING, ELEMENTWISE, MAX_POOLING, MIXING, MODULES, SHAPES, relu


@dataclass(frozen=True)
class Value:
    """A reference to the value of a step, among the arguments of a later step."""

    number: int


Units = tuple[tuple[Any, ...], ...]
"""Units, each given by the number of the step that computes it and the indices by which parts were selected since."""


@dataclass(frozen=True)
class Step:
    """One layer, function, method, parameter or input.

    Attributes:
        op: Name of the operation in ``torch.fx``; ``"shape"`` is a function or method that returns a shape.
        target: A path, a name or a function.
        rule: Rule by which moments pass a function or method.
        args: Arguments, with a :class:`Value` for the value of another step.
        kwargs: Keyword arguments, in the same form.
        inputs: Numbers of the steps whose values it uses.
        last: Numbers of those inputs that no later step uses.
        combined: Numbers of the two steps whose values it adds or multiplies, if it does.
        mixing: Whether its units differ from those of its inputs, as in a linear layer.
        index: The units of its input that it selects, if not all.
    """

    op: str
    target: Any
    rule: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[int, ...]
    last: tuple[int, ...]
    combined: tuple[int, ...]
    mixing: bool
    index: str | None

    def units(self, number: int, before: Mapping[int, Units]) -> Units:
        """Return the random units of which every element of its value is a function.

        Args:
            number: Number of this step.
            before: Units of its inputs; constants have none.

        Raises:
            ValueError: It adds or multiplies values that are clearly dependent: all units of one belong to the other.
        """
        parts = [before[used] for used in self.combined]
        if all(parts) and any(all(_within(unit, b) for unit in a) for a, b in permutations(parts, 2)):
            name = getattr(self.target, "__name__", self.target)
            raise unsupported(f"the function {name!r} of a random value and itself, or a function of itself")
        units = () if self.mixing else tuple(dict.fromkeys(unit for used in self.inputs for unit in before[used]))
        if self.index is not None:
            units = tuple((*unit, self.index) for unit in units)
        return units or ((number,),)


def _within(unit: tuple[Any, ...], units: Units) -> bool:
    """Whether a unit, a part of it, or a unit of which it is a part is among these units."""
    return any(all(a == b for a, b in zip(unit, other, strict=False)) for other in units)


def steps_of(model: nn.Module) -> list[Step]:
    """Return the steps; the last one is the output.

    Raises:
        ValueError: As for :class:`bayesadam.moments.graph.Graph`.
    """
    nodes = _traced(model)
    modules, plain = dict(model.named_modules(remove_duplicate=False)), set[fx.Node]()
    for node in nodes:
        _check(node, modules, plain)
    redirect([node for node in nodes if node not in plain], modules)
    nodes = _pooled_first(nodes, modules)
    numbers = {node: number for number, node in enumerate(nodes)}
    return [_step(node, numbers, modules) for node in nodes]


def _pooled_first(nodes: Sequence[fx.Node], modules: Mapping[str, nn.Module]) -> list[fx.Node]:
    """Move every ReLU behind the max pooling that alone uses its result, and return all nodes in their new order.

    The largest of rectified values is the rectified largest value, so the network is the same. Its moments are closer
    and take less time: max pooling treats its inputs as Gaussian, which rectified values are not, and leaves fewer.
    """
    for pooling in nodes:
        if operation_of(pooling, modules) not in MAX_POOLING:
            continue
        before = pooling.all_input_nodes[0]
        if operation_of(before, modules) in (nn.ReLU, relu) and len(before.users) == 1:
            (source,) = before.all_input_nodes
            pooling.replace_all_uses_with(before)
            pooling.replace_input_with(before, source)
            before.replace_input_with(source, pooling)
            pooling.append(before)
    return list(nodes[0].graph.nodes)


def _step(node: fx.Node, numbers: Mapping[fx.Node, int], modules: Mapping[str, nn.Module]) -> Step:
    calls = node.op in ("call_function", "call_method")
    inputs, mapped = node.all_input_nodes, cast(Any, fx.map_arg)  # declared for nodes only
    args, kwargs = mapped((node.args, node.kwargs), lambda used: Value(numbers[used]))
    rule, places = rule_of(node), list[int]()
    mapped((node.args, node.kwargs), lambda used: places.append(numbers[used]))
    operation, is_layer = operation_of(node, modules), node.op == "call_module"
    return Step(
        "shape" if calls and _asks_for_shape(node) else node.op,
        node.target,
        rule,
        tuple(args),
        dict(kwargs),
        tuple(numbers[used] for used in inputs),
        tuple(numbers[used] for used in inputs if max(used.users, key=numbers.__getitem__) is node),
        tuple(places) if rule in COMBINING and len(places) == 2 else (),
        operation not in ELEMENTWISE if is_layer else operation in MIXING,
        str(node.args[1]) if node.target is operator.getitem else None,
    )


class _Tracer(fx.Tracer):
    """A tracer that does not look into modules that have a rule, nor into those of PyTorch."""

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        leaf = kind_of(module) in MODULES or super().is_leaf_module(module, path)
        return leaf and not has_own_forward(module)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return InPlaceProxy(node, self)


def _traced(model: nn.Module) -> list[fx.Node]:
    for name, module in model.named_modules():
        if has_hooks(module, Observer):
            raise ValueError(
                f"model must have no forward hooks to propagate moments, got some at {name!r} (an optimizer with "
                "PerExampleSquares removes its own in eval())"
            )
    try:
        return list(_Tracer().trace(model).nodes)
    except (fx.proxy.TraceError, TypeError, RuntimeError) as error:
        raise ValueError(
            "model must be a fixed sequence of layers and functions to propagate moments (else use 'monte_carlo'), "
            f"got {type(model).__name__}: {str(error).splitlines()[0]}"
        ) from None


def _check(node: fx.Node, modules: Mapping[str, nn.Module], plain: set[fx.Node]) -> None:
    """Refuse operations without a rule, except for those on shapes and other plain values."""
    if node.op == "call_module":
        kind = kind_of(modules[str(node.target)])
        if kind not in MODULES:
            raise unsupported(f"the layer {str(node.target)!r} ({kind.__name__}); use {replacement(kind)}")
        if len(node.all_input_nodes) != 1:
            raise unsupported(f"the layer {str(node.target)!r} with {len(node.all_input_nodes)} inputs")
    elif node.op == "placeholder":
        if str(node.target).startswith("*"):
            raise unsupported(f"any number of inputs {str(node.target)!r}")
    elif node.op == "output":
        if not isinstance(node.args[0], fx.Node) or node.args[0] in plain:
            raise unsupported("an output that is not one tensor")
    elif node.op in ("call_function", "call_method"):
        inputs = node.all_input_nodes
        if all(used in plain for used in inputs) or _asks_for_shape(node):
            plain.add(node)
            return
        rule, name = rule_of(node), getattr(node.target, "__name__", node.target)
        if rule is None:
            raise unsupported(f"the function {name!r}")
        try:
            inspect.signature(rule).bind(*node.args, **node.kwargs)
        except TypeError as error:
            raise unsupported(f"the function {name!r} with these arguments ({error})") from None


def _asks_for_shape(node: fx.Node) -> bool:
    name = node.args[1] if node.target is getattr else node.target
    return name in SHAPES
