"""Attaching an optimiser to its model: parameter names, and hooks by which state dicts hold the posterior mean."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from bayesadam.core.layout import Layout
from bayesadam.modules.fsdp import spread
from bayesadam.modules.wrappers import innermost, names_in


def names_of(layout: Layout, model: nn.Module) -> dict[Tensor, str]:
    """The names of a model's parameters, as in :func:`names_in`.

    The optimiser's parameters without noise may belong to another module, such as a likelihood.

    Raises:
        ValueError: A perturbed parameter does not belong to the model.
    """
    inner = innermost(model)
    spread(inner)
    names = names_in(inner)
    for parameter, group, _ in layout.members():
        if parameter not in names and group["perturb"]:
            raise layout.not_in_model(parameter)
    return names


def named_alike(group: dict[str, Any], groups: Sequence[Mapping[str, Any]], names: Mapping[Tensor, str]) -> Any:
    """A new group, given names if the other groups have them and without names otherwise, because torch refuses a
    mixture; the names are those of the model.
    """
    params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
    parameters = [param[1] if isinstance(param, tuple) else param for param in params]
    if "param_names" not in groups[0]:
        return {**group, "params": parameters}
    if names.keys() >= set(parameters):
        return {**group, "params": [(names[parameter], parameter) for parameter in parameters]}
    return {**group, "params": params}


def attached(module: nn.Module) -> list[Any]:
    """The optimisers that give the mean to a module's state dicts."""
    hooks = module._state_dict_hooks.values()
    return [hook.optimizer() for hook in hooks if isinstance(hook, _GiveMean) and hook.optimizer() is not None]


def parameters_of(optimizer: Any) -> set[Tensor]:
    """The parameters that an optimiser trains."""
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def competitors(optimizer: Any, model: nn.Module) -> list[Any]:
    """The other optimisers that are attached to a model and train some of the same parameters."""
    trained, others = parameters_of(optimizer), attached(innermost(model))
    return [o for o in others if o is not optimizer and not trained.isdisjoint(parameters_of(o))]


def add_hooks(optimizer: Any, model: nn.Module) -> None:
    """Make state dicts of the model, its parts and its wrappers save and load the mean while weights hold a sample."""
    trained = parameters_of(optimizer)
    for module in model.modules():
        if optimizer not in attached(module) and not trained.isdisjoint(module.parameters()):
            module.register_state_dict_post_hook(_GiveMean(optimizer))  # type: ignore[no-untyped-call]
            module.register_load_state_dict_post_hook(_TakeMean(optimizer))  # type: ignore[no-untyped-call]


def join(optimizer: Any, model: nn.Module) -> None:
    """Check the model and add the hooks; warn if another optimiser trains further parameters of it with the same
    noise.
    """
    names_of(optimizer._engine.layout, model)
    others = attached(innermost(model))
    add_hooks(optimizer, model)
    if optimizer not in others and any(share_noise(optimizer, other) for other in others):
        warnings.warn(
            f"another optimiser of this model has the same seed={optimizer.param_groups[0]['seed']}, so the noise of "
            "the two is the same, their samples are correlated and their curvature is wrong: give each a different "
            "seed=",
            UserWarning,
            stacklevel=3,
        )


def share_noise(first: Any, second: Any) -> bool:
    """Whether two optimisers perturb different parameters by the same noise."""
    seeds = {optimizer.param_groups[0]["seed"] for optimizer in (first, second)}
    perturbed, others = (
        {parameter for group in optimizer.param_groups if group["perturb"] for parameter in group["params"]}
        for optimizer in (first, second)
    )
    return len(seeds) == 1 and bool(perturbed and others) and perturbed.isdisjoint(others)


def warn_of_other_values(name: str) -> None:
    """Warn that weights modified externally while they held a sample are now taken as the mean."""
    warnings.warn(
        f"parameter {name} did not hold the sample that train() drew; its values are taken as the mean: call "
        "eval() before changing weights, or attach(model) once to load a mean into the model",
        UserWarning,
        stacklevel=4,
    )


def warn_of_sample() -> None:
    """Warn that saving the model now would save a posterior sample."""
    warnings.warn(
        "the weights hold a posterior sample, which model.state_dict() would save as if it were the mean: "
        "call optimizer.attach(model) once, or optimizer.eval() before saving",
        UserWarning,
        stacklevel=3,
    )


class _Hook:
    """A hook with a weak reference to the optimiser; in a copy or a pickle of the model it does nothing."""

    def __init__(self, optimizer: Any = None) -> None:
        self.optimizer: Callable[[], Any] = (lambda: None) if optimizer is None else weakref.ref(optimizer)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class _GiveMean(_Hook):
    def __call__(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
        optimizer = self.optimizer()
        means: dict[Tensor, Tensor] = {}  # parameters with several names have one mean, as tied weights share memory
        for name, parameter in [] if optimizer is None else module.named_parameters(remove_duplicate=False):
            mean = optimizer._engine.weights.mean_of(parameter)
            if prefix + name in state_dict and mean is not None:
                if parameter not in means:
                    means[parameter] = mean.to(parameter.dtype, copy=True)
                state_dict[prefix + name] = means[parameter]


class _TakeMean(_Hook):
    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        optimizer = self.optimizer()
        if optimizer is not None:  # loaded values are the mean
            optimizer._engine.weights.reconcile(list(module.parameters()))
