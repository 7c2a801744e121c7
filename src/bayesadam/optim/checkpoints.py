"""State dicts: refusing those of others before anything changes, and taking tensors as they were saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bayesadam.curvature.names import with_current_names
from bayesadam.engine.store import COUNTERS, Store

EARLIER = {
    "compile": False,
    "maximize": False,
    "perturb": True,
    "temperature": 1.0,
    "nonfinite": "raise",
    "antithetic": False,
}
"""What was in force when files were written that do not say it, whatever the defaults are today."""


def check_state_dict(store: Store, defaults: Mapping[str, Any], state_dict: Mapping[str, Any]) -> None:
    """See that a state dict is of an optimiser of this kind over parameters like these.

    Raises:
        ValueError: It is of another one.
    """
    method = defaults["method"]
    for group in state_dict["param_groups"]:
        group = {"method": method, **with_current_names(group)}  # some have no method
        for name in ("method", "hessian", "covariance"):
            own = defaults.get(name)
            if group.get(name) != own:
                raise ValueError(f"{name} of the state_dict must be {own!r}, got {group.get(name)!r}")
    sizes = [
        [len(group["params"]) for group in groups] for groups in (state_dict["param_groups"], store.owner.param_groups)
    ]
    if sizes[0] != sizes[1]:
        raise ValueError(f"state_dict must have groups of {sizes[1]} parameters, got {sizes[0]}")
    required = {"mean", *store.rule.state, *COUNTERS}
    for identity, parameter in pairs(store, state_dict):
        entries = state_dict["state"].get(identity)
        if entries is None:
            continue
        missing = required - entries.keys()
        if missing:
            raise ValueError(
                f"the state of parameter {identity!r} must have {sorted(required)}, got none for {sorted(missing)}"
            )
        if entries["mean"].shape != parameter.shape:
            raise ValueError(
                f"the state of parameter {identity!r} must be of shape {tuple(parameter.shape)}, "
                f"got {tuple(entries['mean'].shape)}"
            )


def take_tensors(store: Store, state_dict: Mapping[str, Any]) -> None:
    """Copy the saved tensors: torch casts them to the parameter's dtype, and shares them with the state dict."""
    for identity, parameter in pairs(store, state_dict):
        for name, value in state_dict["state"].get(identity, {}).items():
            if isinstance(value, Tensor) and name not in COUNTERS:
                store.owner.state[parameter][name] = value.detach().to(parameter.device, copy=True)


def pairs(store: Store, state_dict: Mapping[str, Any]) -> list[tuple[Any, Tensor]]:
    """What the state dict calls each parameter (a number or a name), and the parameter."""
    saved = [identity for group in state_dict["param_groups"] for identity in group["params"]]
    own = [parameter for group in store.owner.param_groups for parameter in group["params"]]
    return list(zip(saved, own, strict=True))
