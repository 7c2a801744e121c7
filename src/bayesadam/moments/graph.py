"""A network as a graph of layers and functions that mean and variance are propagated through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from bayesadam.functional import moments as maps
from bayesadam.modules.fsdp import kind_of
from bayesadam.moments.rules import MODULES
from bayesadam.moments.trace import Step, Units, Value, steps_of
from bayesadam.moments.values import Moments


class Graph:
    """The computation of a network, found by tracing it once without data.

    Args:
        model: The network. Its layers and functions must have rules. It may be composed of other modules in any way
            that does not depend on the values of data. Parameters are stored by name, not by value.

    Raises:
        ValueError: A layer or function has no rule (the message names the first one), the network has hooks, or its
            control flow depends on data.
    """

    def __init__(self, model: nn.Module) -> None:
        self._steps = steps_of(model)
        (last,) = self._steps[-1].inputs
        step = self._steps[last]
        linear = step.op == "call_module" and type(model.get_submodule(step.target)) is nn.Linear
        self._linear_output = last if linear else None
        # A parameter that several modules share has one name among the weights, but may be looked up by another one.
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
        """Return the moments of the output.

        Args:
            model: The model that was traced, or a copy of it.
            weights: Moments of its parameters by name; parameters that are missing are constants.
            args: Inputs: tensors, or :class:`Moments` of them.
            kwargs: Inputs by name.
            covariance: Whether to compute the covariance of the outputs of a data point, which is possible if the last
                layer is linear and its inputs are uncertain.

        Raises:
            TypeError: The inputs are not those of the model, or a divisor is random.
            ValueError: A random value is added to or multiplied by itself, or a function of itself.
            RuntimeError: Batch normalisation is in training mode.
        """
        values: dict[int, Any] = {}
        units: dict[int, Units] = {}
        given, named = list(args), dict(kwargs)
        for number, step in enumerate(self._steps[:-1]):
            if step.op == "placeholder":
                values[number] = _input(step, given, named)
            elif step.op == "get_attr":
                values[number] = weights.get(step.target) or Moments(_attribute(model, step.target))
            elif step.op == "call_module":
                module = model.get_submodule(step.target)
                values[number] = self._module(
                    step, module, weights, values, covariance and number == self._linear_output
                )
            else:
                values[number] = _call(step, values)
            value = values[number]
            uncertain = isinstance(value, Moments) and value.variance is not None
            units[number] = step.units(number, units) if uncertain else ()
            for used in step.last:
                del values[used]
        if given or named:
            raise TypeError(f"the model must be given its own inputs only, got {len(given)} more and {list(named)}")
        output: Moments = _filled(self._steps[-1].args[0], values)
        return output

    def _module(
        self,
        step: Step,
        module: nn.Module,
        weights: Mapping[str, Moments],
        values: Mapping[int, Any],
        covariance: bool,
    ) -> Moments:
        def weights_of(name: str) -> Moments | None:
            tensor = getattr(module, name)
            if tensor is None:
                return None
            return weights.get(self._names[f"{step.target}.{name}"]) or Moments(tensor)

        (x,) = (_filled(value, values) for value in (*step.args, *step.kwargs.values()))
        moments = MODULES[kind_of(module)](module, x, weights_of)
        weight = weights_of("weight") if covariance else None
        if weight is None or x.variance is None:
            return moments
        return Moments(
            moments.mean, moments.variance, maps.output_covariance(x.variance, weight.mean, moments.spread())
        )


def _call(step: Step, values: Mapping[int, Any]) -> Any:
    """Call a function or method by its rule, or directly if no argument has moments."""
    args, kwargs = _filled(step.args, values), _filled(step.kwargs, values)
    if step.op == "shape":
        args = (args[0].mean if isinstance(args[0], Moments) else args[0], *args[1:])
    elif step.rule is not None and any(isinstance(values[used], Moments) for used in step.inputs):
        return step.rule(*args, **kwargs)
    if isinstance(step.target, str):
        return getattr(args[0], step.target)(*args[1:], **kwargs)
    return step.target(*args, **kwargs)


def _input(step: Step, given: list[Any], named: dict[str, Any]) -> Any:
    """Remove an input from those that were given, and return it."""
    if given:
        value = given.pop(0)
    elif step.target in named:
        value = named.pop(step.target)
    elif step.args:
        value = step.args[0]
    else:
        raise TypeError(f"the model must be given its input {step.target!r}, got none")
    return Moments(value) if isinstance(value, Tensor) else value


def _filled(value: Any, values: Mapping[int, Any]) -> Any:
    """Replace references to steps by their values."""
    if isinstance(value, Value):
        return values[value.number]
    if isinstance(value, tuple | list):
        return type(value)([_filled(part, values) for part in value])
    if isinstance(value, dict):
        return {key: _filled(part, values) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(*(_filled(part, values) for part in (value.start, value.stop, value.step)))
    return value


def _attribute(model: Any, path: str) -> Any:
    for name in path.split("."):
        model = getattr(model, name)
    return model
