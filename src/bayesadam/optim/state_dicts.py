"""Loading state dicts: whether one fits an optimiser, and what is built anew for its entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesadam.core.engine import Engine
from bayesadam.core.layout import Layout, fault_in
from bayesadam.core.rule import COUNTERS, Rule
from bayesadam.core.sampling import BLOCK, MEAN, TRAIN, Weights
from bayesadam.core.sources import HessianSource, Source
from bayesadam.modules.sharding import local
from bayesadam.modules.wrappers import names_in


def pairs(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> list[tuple[Any, Tensor]]:
    """Pairs of a parameter's identity in the state dict (a number or a name) and the parameter."""
    identities = [identity for group in state_dict["param_groups"] for identity in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return list(zip(identities, parameters, strict=True))


def check(optimizer: Optimizer, rule: Rule, state_dict: Mapping[str, Any]) -> None:
    """Check that a state dict is of the same method, with parameters of the same shapes in the same order.

    Raises:
        ValueError: The state dict is of another method or of other parameters.
    """
    for group in state_dict["param_groups"]:
        for name in ("method", "hessian", "rank_samples"):
            if group.get(name) != optimizer.defaults.get(name):
                raise ValueError(
                    f"{name} of the state_dict must be {optimizer.defaults.get(name)!r}, got {group.get(name)!r}"
                )
    saved, present = ([len(g["params"]) for g in of["param_groups"]] for of in (state_dict, vars(optimizer)))
    if saved != present:
        raise ValueError(f"state_dict must have groups of {present} parameters, got {saved}")
    saved_names, names = _names(state_dict["param_groups"]), _names(optimizer.param_groups)
    for position, name in enumerate(names):
        if name is not None and name in saved_names and saved_names[position] != name:
            raise ValueError(
                f"state_dict must have parameter {name!r} at position {position}, got {saved_names[position]!r} there "
                "(states belong to parameters by their position)"
            )
    for identity, parameter in pairs(optimizer, state_dict):
        entries = state_dict["state"].get(identity)
        fault = None if entries is None else fault_in(entries, parameter, rule)
        if fault is not None:
            raise ValueError(f"the state of parameter {identity!r} {fault}")


def _names(groups: list[dict[str, Any]]) -> list[Any]:
    """Names of all parameters in order, ``None`` for those without one."""
    return [name for group in groups for name in group.get("param_names", [None] * len(group["params"]))]


@contextmanager
def loading(optimizer: Any) -> Iterator[None]:
    """Context in which torch loads a state dict, which is checked after the user's own hooks, which may change it."""

    def look(_: Optimizer, state_dict: dict[str, Any]) -> None:
        check(optimizer, optimizer.rule, state_dict)
        optimizer._loaded = state_dict
        if optimizer._engine.weights.held != MEAN:
            optimizer._engine.eval()  # a model that was loaded before stays as it is

    handle = optimizer.register_load_state_dict_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()
        optimizer._loaded = None


def take(optimizer: Any, state_dict: Mapping[str, Any]) -> None:
    """Make a new engine for the groups and the state that torch has loaded."""
    for identity, parameter in pairs(optimizer, state_dict):
        for name, value in state_dict["state"].get(identity, {}).items():
            if isinstance(value, Tensor):  # once more, since torch has cast it to the parameter's dtype
                device = torch.device("cpu") if name in COUNTERS else parameter.device
                optimizer.state[parameter][name] = value.detach().to(device, copy=True)
    rebuild(optimizer)


@torch.no_grad()
def rebuild(optimizer: Any, *, copied: bool = False) -> None:
    """Make a new engine for groups and state, and put the sample of ``train()`` into the weights again."""
    engine = optimizer._engine = new_engine(optimizer)
    layout, held = engine.layout, engine.weights.held
    in_block = held == BLOCK  # the model may be loaded later, with its sample
    if held != MEAN and not (in_block and copied):
        for parameter, state in optimizer.state.items():
            if "mean" in state:
                local(parameter).copy_(local(state["mean"]))
    layout.set_all("weights", BLOCK if in_block else MEAN)
    if optimizer.state:  # otherwise the parameters may be replaced later, as Accelerate does with FSDP2
        layout.flats()
    if held == TRAIN:
        engine.train()
    engine.weights.resume()


def companions(optimizer: Any) -> dict[str, Any]:
    """What belongs to an optimiser's copies and pickles besides groups and state."""
    model = None if optimizer._model is None else optimizer._model()
    each = {"_source": optimizer._source, "_prior": optimizer._prior or None, "_attached": model}
    return {name: value for name, value in each.items() if value is not None}


def new_engine(optimizer: Any) -> Engine:
    """A new engine for an optimiser; the data of an unfinished step are discarded."""
    weights = Weights(Layout(optimizer, optimizer.rule, optimizer._prior))
    source: Source | None = optimizer._source
    if optimizer.defaults.get("hessian") in ("exact", "hutchinson"):
        source = HessianSource(weights, optimizer.defaults["hessian"])
    if source is not None:
        source.stop()
    model = None if optimizer._model is None else optimizer._model()
    if model is not None:
        weights.layout.attached_names = names_in(model)
    return Engine(weights, source, optimizer.watch)
