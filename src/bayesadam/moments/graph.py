"""A network as a graph of layers and functions that mean and variance are propagated through."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from torch import Tensor, fx, nn

from bayesadam.functional import moments as maps
from bayesadam.moments.rules import FUNCTIONS, METHODS, MODULES, SHAPES
from bayesadam.moments.values import Moments


class Graph:
    """What a network computes, found by tracing it once with no data.

    Args:
        model: Its layers and functions must have rules. It may be built of other modules in any way that does not
            depend on the values of data; parameters are kept by name, not by value.

    Raises:
        ValueError: A layer or function without a rule, the first one is named; a network with hooks; or one whose
            control flow depends on data.
    """

    def __init__(self, model: nn.Module) -> None:
        self._nodes = _traced(model)
        modules, plain = dict(model.named_modules(remove_duplicate=False)), set[fx.Node]()
        for node in self._nodes:
            _check(node, modules, plain)
        last = self._nodes[-1].all_input_nodes[0]
        linear = last.op == "call_module" and type(modules[str(last.target)]) is nn.Linear
        self._linear_output = last if linear else None
        # A parameter that several modules share has one name among the weights, and may be asked for by another.
        first: dict[Tensor, str] = {}
        named = model.named_parameters(remove_duplicate=False)
        self._names = {name: first.setdefault(parameter, name) for name, parameter in named}

    @property
    def has_covariance(self) -> bool:
        """Whether the outputs are those of a linear layer, so that their covariance is known."""
        return self._linear_output is not None

    def run(
        self,
        model: nn.Module,
        weights: Mapping[str, Moments],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        covariance: bool = False,
    ) -> Moments:
        """The output's moments.

        Args:
            model: The one that was traced, or a copy of it.
            weights: Moments of its parameters by name; parameters that are missing are what they are.
            args: Inputs: tensors, or :class:`Moments` of them.
            kwargs: Inputs by name.
            covariance: Also that of the outputs of a data point, if the last layer is linear and its inputs uncertain.

        Raises:
            TypeError: Inputs that are not the model's, or a division by what has a variance.
            RuntimeError: Batch normalisation in training mode.
        """
        values: dict[fx.Node, Any] = {}
        given, named = list(args), dict(kwargs)
        for node in self._nodes:
            if node.op == "placeholder":
                values[node] = _input(node, given, named)
            elif node.op == "get_attr":
                values[node] = weights.get(str(node.target)) or Moments(attrgetter(str(node.target))(model))
            elif node.op == "call_module":
                values[node] = self._module(model, node, weights, values, covariance and node is self._linear_output)
            elif node.op == "output":
                if given or named:
                    more = f"{len(given)} more and {list(named)}"
                    raise TypeError(f"the model must be given its own inputs only, got {more}")
                found: Moments = _filled(node.args[0], values)
                return found
            else:
                values[node] = _call(node, values)
            for used in node.all_input_nodes:
                if list(used.users)[-1] is node:
                    del values[used]
        raise AssertionError("a graph has an output")

    def _module(
        self,
        model: nn.Module,
        node: fx.Node,
        weights: Mapping[str, Moments],
        values: Mapping[fx.Node, Any],
        covariance: bool,
    ) -> Moments:
        path, module = str(node.target), _module(model, node)

        def weights_of(name: str) -> Moments | None:
            own = getattr(module, name)
            if own is None:
                return None
            full = f"{path}.{name}" if path else name
            return weights.get(self._names[full]) or Moments(own)

        (x,) = (_filled(value, values) for value in (*node.args, *node.kwargs.values()))
        found = MODULES[type(module)](module, x, weights_of)
        weight = weights_of("weight") if covariance else None
        if weight is None or x.variance is None:
            return found
        return Moments(found.mean, found.variance, maps.output_covariance(x.variance, weight.mean, found.spread()))


class _Tracer(fx.Tracer):
    """Stops at modules that have a rule, and at those of PyTorch."""

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        return type(module) in MODULES or super().is_leaf_module(module, path)


def _traced(model: nn.Module) -> list[fx.Node]:
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise ValueError(f"model must have no forward hooks to propagate moments, got some at {name!r}")
    try:
        return list(_Tracer().trace(model).nodes)
    except (fx.proxy.TraceError, TypeError, RuntimeError) as error:
        raise ValueError(
            "model must be a fixed sequence of layers and functions to propagate moments (else use 'monte_carlo'), "
            f"got {type(model).__name__}: {str(error).splitlines()[0]}"
        ) from None


def _check(node: fx.Node, modules: Mapping[str, nn.Module], plain: set[fx.Node]) -> None:
    """Refuse what has no rule; what is computed of shapes and other plain values needs none."""
    if node.op == "call_module":
        kind = type(modules[str(node.target)])
        if kind not in MODULES:
            raise _unsupported(f"the layer {str(node.target)!r} ({kind.__name__})")
        if len(node.all_input_nodes) != 1:
            raise _unsupported(f"the layer {str(node.target)!r} with {len(node.all_input_nodes)} inputs")
    elif node.op == "placeholder":
        if str(node.target).startswith("*"):
            raise _unsupported(f"any number of inputs {str(node.target)!r}")
    elif node.op == "output":
        if not isinstance(node.args[0], fx.Node) or node.args[0] in plain:
            raise _unsupported("an output that is not one tensor")
    elif node.op in ("call_function", "call_method"):
        inputs = node.all_input_nodes
        if all(used in plain for used in inputs) or _asks_for_shape(node):
            plain.add(node)
        elif node.target not in (FUNCTIONS if node.op == "call_function" else METHODS):
            raise _unsupported(f"the function {getattr(node.target, '__name__', node.target)!r}")


def _asks_for_shape(node: fx.Node) -> bool:
    name = node.args[1] if node.target is getattr else node.target
    return name in SHAPES


def _unsupported(what: str) -> ValueError:
    return ValueError(
        "model must have layers and functions only that moments can be propagated through (else use 'monte_carlo'), "
        f"got {what}"
    )


def _call(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """A function or method: by its rule, or plainly if no moments are among its arguments."""
    args, kwargs = _filled(node.args, values), _filled(node.kwargs, values)
    if _asks_for_shape(node):
        args = (args[0].mean if isinstance(args[0], Moments) else args[0], *args[1:])
    elif any(isinstance(values[used], Moments) for used in node.all_input_nodes):
        return (FUNCTIONS if node.op == "call_function" else METHODS)[node.target](*args, **kwargs)  # type: ignore[index]
    if node.op == "call_function":
        return node.target(*args, **kwargs)  # type: ignore[operator]
    return getattr(args[0], str(node.target))(*args[1:], **kwargs)


def _input(node: fx.Node, given: list[Any], named: dict[str, Any]) -> Any:
    """The value of an input, which is taken out of those that were given."""
    name = str(node.target)
    if given:
        value = given.pop(0)
    elif name in named:
        value = named.pop(name)
    elif node.args:
        value = node.args[0]
    else:
        raise TypeError(f"the model must be given its input {name!r}, got none")
    return Moments(value) if isinstance(value, Tensor) else value


def _filled(value: Any, values: Mapping[fx.Node, Any]) -> Any:
    return fx.map_arg(value, lambda node: values[node])


def _module(model: nn.Module, node: fx.Node) -> nn.Module:
    return model.get_submodule(str(node.target))
