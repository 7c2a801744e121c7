"""The hyper-parameters that every optimiser has: bookkeeping and checks of parameter groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from bayesadam.checks import check, check_count, check_nonfinite, check_positive, check_temperature, plain
from bayesadam.core.sampling import MEAN
from bayesadam.curvature import PerExampleSquares
from bayesadam.modules.sharding import is_sharded

BOOKKEEPING = {"perturb": True, "noise_step": 0, "skipped_steps": 0, "weights": MEAN}
"""Entries of parameter groups that are not arguments of the constructor."""
COUNTED = ("noise_step", "skipped_steps", "slowdown")
"""Entries that are the same in all groups."""
SHARED = ("mc_samples", "antithetic", "nonfinite", "compile", "rank_samples")
"""Hyper-parameters that must be the same in all groups."""

REPORTED = ("num_data", "prior_precision", "temperature", "seed")
"""Entries that a posterior has, as hyper-parameters of its training."""


def settled(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert NumPy scalars to Python numbers and ``betas`` to the tuple that PyTorch's schedulers need."""
    return {name: plain(name, value) for name, value in given.items()}


def check_ordered(params: Any) -> None:
    """Refuse a set of parameters, since their order decides which noise each one gets and a set has no fixed order."""
    if isinstance(params, set | frozenset):
        raise ValueError(f"params must be a list or another ordered collection, got a {type(params).__name__}")


def check_effective(group: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse a weight decay or a prior that is no hyper-parameter of the method and would have no effect."""
    if group.get("weight_decay") and "weight_decay" not in known:
        raise ValueError(
            "weight_decay must be given as a prior (ba.param_groups(model, weight_decay=..., num_data=..., "
            f"temperature=...) converts it), got {group['weight_decay']!r}"
        )
    if "prior_precision" in group and "prior_precision" not in known:
        raise ValueError(
            f"prior_precision must not be given to {known['method']}, which has no prior, "
            f"got {group['prior_precision']!r}"
        )


def checked(group: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A new group with the types that PyTorch needs, without entries that would have no effect.

    Raises:
        ValueError: There is such an entry, or the parameters have no order.
    """
    check_ordered(group["params"])
    check_effective(group, defaults)
    return {**group, **settled({name: value for name, value in group.items() if name in defaults})}


def number(group: dict[str, Any], others: Sequence[Mapping[str, Any]]) -> None:
    """Set the entries of a group that follow from the groups before it."""
    group["noise_index"] = sum(len(other["params"]) for other in others if other["seed"] == group["seed"])
    for name in COUNTED if others else ():
        if name in others[0]:
            group[name] = others[0][name]
    if any("initial_lr" in other for other in others):
        group.setdefault("initial_lr", group["lr"])  # a scheduler of PyTorch changes the rate of this group, too


def check_common(group: Mapping[str, Any]) -> None:
    """Check the hyper-parameters that every perturbed optimiser has."""
    check("lr", group["lr"], "a number or a 1-element tensor, finite and at least 0", _is_learning_rate)
    check("betas", group["betas"], "a pair of numbers in [0, 1)", _is_betas)
    check_positive("num_data", group["num_data"])
    check_temperature(group["temperature"])
    check_count("mc_samples", group["mc_samples"])
    check("seed", group["seed"], "an integer in [0, 2**64)", lambda v: isinstance(v, int) and 0 <= v < 2**64)
    for name in ("antithetic", "perturb", "maximize", "rank_samples", "compile"):
        check(name, group[name], "True or False", lambda v: isinstance(v, bool))
    if group["antithetic"]:
        check("mc_samples", group["mc_samples"], "even when antithetic=True", lambda v: v % 2 == 0)
    if group["rank_samples"] and group.get("hessian") in ("exact", "hutchinson"):
        raise ValueError(f"hessian must be 'reparameterized' with rank_samples=True, got {group['hessian']!r}")
    check_nonfinite(group["nonfinite"])
    if group["initial_precision"] is not None:
        check_positive("initial_precision", group["initial_precision"])


def check_prior(group: Mapping[str, Any], *, start_wider: bool = False) -> None:
    """Check the prior precision and, unless ``start_wider`` is set, that the posterior does not start wider than the
    prior.
    """
    prior, start = group["prior_precision"], group["initial_precision"]
    check_positive("prior_precision", prior)
    if start is not None and not start_wider:
        check("initial_precision", start, f"at least prior_precision={prior!r}", lambda v: v >= prior)


def check_shared(group: Mapping[str, Any], others: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Refuse a group that differs from the others in a hyper-parameter that must be the same in all groups."""
    for name in names:
        if others and group.get(name) != others[0].get(name):
            raise ValueError(f"{name} must be the same in all groups, got {group[name]!r}")


def check_distinct(parameters: Sequence[Tensor]) -> None:
    """Refuse a parameter that is there twice, whose second sample would take the first one for the mean."""
    if len(set(parameters)) < len(parameters):
        raise ValueError("params must have every parameter once (model.parameters() has tied ones once), got one twice")


def check_parameters(group: Mapping[str, Any], source: PerExampleSquares | None) -> None:
    """Refuse trainable parameters that are complex; sharded parameters if every rank draws its own sample; and
    perturbed parameters that do not belong to the model of the source of curvature.
    """
    check_distinct(group["params"])
    for position, parameter in enumerate(group["params"]):
        if parameter.is_complex() and parameter.requires_grad:
            raise ValueError(f"parameter {position} of the group must be real, got dtype {parameter.dtype}")
        if group["rank_samples"] and is_sharded(parameter):
            raise ValueError(f"rank_samples must be False for sharded parameters, got one, number {position}")
        if source is not None and group["perturb"] and not source.covers(parameter):
            name = f"the parameter {group['param_names'][position]!r}" if "param_names" in group else "a parameter"
            raise ValueError(
                "curvature must be made for the model of these parameters, got one for a model that does "
                f"not have {name} of shape {tuple(parameter.shape)}"
            )


def checked_squares(curvature: Any) -> PerExampleSquares:
    """The argument ``curvature``.

    Raises:
        ValueError: It is not a :class:`PerExampleSquares`.
    """
    check("curvature", curvature, "a PerExampleSquares of the model", lambda v: isinstance(v, PerExampleSquares))
    squares: PerExampleSquares = curvature
    return squares


def _is_learning_rate(value: Any) -> bool:
    if isinstance(value, Tensor) and value.numel() != 1:
        return False
    return 0 <= float(value) < math.inf


def _is_betas(value: Any) -> bool:
    first, second = value
    return isinstance(value, tuple) and 0 <= first < 1 and 0 <= second < 1
