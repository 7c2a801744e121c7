"""The hyper-parameters of all members, as numbers where they agree and as columns where they differ."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesadam.core.layout import INIT
from bayesadam.core.passes import PER_WEIGHT
from bayesadam.core.rule import Hyper, Rule
from bayesadam.curvature import PerExampleSquares
from bayesadam.likelihoods import Likelihood
from bayesadam.optim import OPTIMIZERS, VOGN, BayesAdam, PerturbedOptimizer
from bayesadam.optim.adam import AdamRule
from bayesadam.population.layout import Layout
from bayesadam.posterior import DiagonalGaussian

METHODS = (*OPTIMIZERS, "adam")
Numbers = dict[str, Any]

_ADAM = ("lr", "betas", "eps", "weight_decay")
_NOT_HERE = ("nonfinite", "rank_samples", "low_memory")
_REFUSED = ("maximize", "extra", "curvature", *_NOT_HERE)
_SHARED = ("mc_samples", "antithetic", "perturb")
_POSSIBLE = {
    "hessian": ("reparameterized", "exact", "empirical_fisher"),
    "covariance": ("diagonal",),
    "correction": ("elementwise", None),
}
_BOOKKEEPING = (
    "params",
    "param_names",
    "weights",
    "maximize",
    "noise_index",
    "noise_step",
    "skipped_steps",
    *_NOT_HERE,
)


def member_options(options: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Options of each member: a list, array or 1-D tensor has one value per member, anything else is shared."""
    members: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in options.items():
        if isinstance(value, np.ndarray | Tensor) and value.ndim < 2:
            value = value.tolist()
        if isinstance(value, list | range):
            if len(value) != count:
                raise ValueError(f"{name} must have one value for each of {count} members, got {len(value)}")
            for member, own in zip(members, value, strict=True):
                member[name] = own.item() if isinstance(own, Tensor) else own
        else:
            for member in members:
                member[name] = value
    return members


def configure(
    method: str | type[PerturbedOptimizer],
    models: Sequence[nn.Module],
    likelihoods: Sequence[Likelihood],
    layout: Layout,
    options: Sequence[Mapping[str, Any]],
    known: Sequence[Mapping[str, Any]],
) -> tuple[Rule, list[Numbers], Tensor]:
    """Rule, hyper-parameters and initial means of every member, as the library's optimiser would have them.

    The optimisers are constructed, so that defaults, checks, messages and the start from a posterior are theirs.

    Args:
        method: As in :func:`bayesadam.population.train`.
        models: One network per member.
        likelihoods: One likelihood or objective per member.
        layout: Places of the parameters in a row.
        options: Hyper-parameters of each member.
        known: Facts about each member's training that are used for options of the rule that ``options`` does not have.

    Returns:
        The rule; the hyper-parameters of every member, with ``perturb`` and, if priors are not one number per member,
        rows ``prior_mean`` and ``prior_precision`` of length ``numel``; and the means ``(P, numel)``.
    """
    make = _optimizer(method)
    called = method if isinstance(method, str) else method.__name__
    hypers, means = [], []
    if make is not None:
        declared = {option.name for option in make.rule.options}
        facts = [{name: value for name, value in own.items() if name in declared} for own in known]
        options = [{**fact, **own} for fact, own in zip(facts, options, strict=True)]
    continued = any(isinstance(own.get("prior"), DiagonalGaussian) for own in options)
    if make is not None and issubclass(make, BayesAdam):
        continued |= any(own.get("prior_precision", INIT) == INIT for own in options)
    for model, likelihood, own in zip(models, likelihoods, options, strict=True):
        for name in own:
            if name in _REFUSED or (make is None and name not in (*_ADAM, "seed", "num_data", "prior")):
                raise TypeError(f"{name} must not be given to a population of {called!r}, got {own[name]!r}")
        if make is not None and own.get("prior") is not None:
            # An optimiser that starts from a posterior writes its mean into the parameters.
            model, likelihood = copy.deepcopy(model), copy.deepcopy(likelihood)
        named = list(model.named_parameters())
        learned = [(f"likelihood.{name}", p) for name, p in likelihood.named_parameters() if p.requires_grad]
        if make is None:
            adam = torch.optim.Adam([*named, *learned], **{name: own[name] for name in _ADAM if name in own})
            start = dict(adam.param_groups[0]) | {"perturb": False, "mc_samples": 1, "antithetic": False}
            hypers.append({key: start[key] for key in (*_ADAM, "perturb", "mc_samples", "antithetic")})
            hypers[-1] |= {"seed": own["seed"], "temperature": 1.0}
            if continued or own.get("prior") is not None:
                hypers[-1] |= {"num_data": own["num_data"], **_adam_prior(own.get("prior"), model, layout)}
            rule: Rule = AdamRule()
        else:
            groups: list[dict[str, Any]] = [{"params": list(named)}]
            if learned:
                groups.append({"params": list(learned), "perturb": False})
            if issubclass(make, VOGN):  # told of the module; its hooks are never started
                own = {**own, "curvature": PerExampleSquares(model)}
            optimizer = make(groups, **own)
            rule = optimizer.rule
            group = optimizer.param_groups[0]
            rows = _prior_rows(optimizer, [*named, *learned], layout, group) if continued else {}
            hypers.append(_told(rule, group, rows))
            for name, possible in _POSSIBLE.items():
                if group.get(name, possible[0]) not in possible:
                    raise ValueError(f"{name} must be one of {possible} in a population, got {group[name]!r}")
        hypers[-1]["method"] = "Adam" if make is None else make.__name__
        values = dict([*named, *learned])
        means.append(layout.flatten({name: values[name].detach() for name in layout.shapes}))
    for name in (*_SHARED, *(option.name for option in rule.options if option.static)):
        if any(own.get(name) != hypers[0].get(name) for own in hypers):
            raise ValueError(f"{name} must be the same for all members, got different values")
    for name in (option.name for option in rule.options):
        if len({own.get(name) is None for own in hypers}) > 1:
            raise ValueError(f"{name} must be None for all members or for none, got {[own[name] for own in hypers]!r}")
    return rule, hypers, torch.stack(means)


def _told(rule: Rule, group: Mapping[str, Any], rows: Mapping[str, Tensor]) -> Numbers:
    """Entries of a group for a member, with rows of a prior and the initial precision in numbers."""
    told = {key: value for key, value in group.items() if key not in _BOOKKEEPING} | dict(rows)
    told["lr"] = float(group["lr"])
    if group["initial_precision"] is None:
        first, second = group["betas"]
        told["initial_precision"] = rule.default_start(Hyper(**told, beta1=first, beta2=second))
    return told


def _optimizer(method: Any) -> type[PerturbedOptimizer] | None:
    """The class of a method's optimiser; ``None`` for Adam."""
    if method == "adam":
        return None
    if isinstance(method, str) and method in METHODS:
        return OPTIMIZERS[method]
    if isinstance(method, type) and issubclass(method, PerturbedOptimizer) and hasattr(method, "rule"):
        return method
    raise ValueError(f"method must be one of {METHODS} or a subclass of PerturbedOptimizer with a rule, got {method!r}")


def _adam_prior(prior: Any, model: nn.Module, layout: Layout) -> dict[str, Tensor]:
    """A prior for Adam as rows, of precision 0 where there is none.

    Raises:
        ValueError: The prior is of another kind, over other weights, or has a variance of 0.
    """
    like = next(model.parameters())
    mean = {name: like.new_zeros(shape) for name, shape in layout.shapes.items()}
    precision = dict(mean)
    if prior is not None:
        if not isinstance(prior, DiagonalGaussian) or not all(value.all() for value in prior.variance.values()):
            raise ValueError(
                f"prior must be a DiagonalGaussian with positive variances for a population of 'adam', got {prior!r}"
            )
        for name, weight in prior.match(model).items():
            mean[name] = prior.mean[name].to(weight.device, weight.dtype)
            precision[name] = prior.variance[name].to(mean[name]).reciprocal()
    return {"prior_mean": layout.flatten(mean), "prior_precision": layout.flatten(precision)}


def _prior_rows(optimizer: Any, named: Sequence[Any], layout: Layout, group: Mapping[str, Any]) -> dict[str, Tensor]:
    """The prior as rows, for all members if that of any of them is not a number."""
    optimizer._engine.layout.flats()
    states = {name: optimizer.state.get(parameter, {}) for name, parameter in named}
    tensors, rows = dict(named), {}
    for key, other in (("prior_mean", 0.0), ("prior_precision", group["prior_precision"])):
        values = {name: torch.as_tensor(states[name].get(key, other)) for name in layout.shapes}
        rows[key] = layout.flatten({n: v.to(tensors[n]).expand(tensors[n].shape) for n, v in values.items()})
    return rows


def columns(hypers: Sequence[Numbers], device: torch.device) -> Numbers:
    """Combine the members' hyper-parameters: a value if all members agree, otherwise a column ``(P, 1)`` as an array.

    Rows of a prior become ``(P, numel)`` on the device.
    """
    merged: Numbers = {}
    for key in hypers[0]:
        values = [own[key] for own in hypers]
        if key == "betas":
            merged[key] = tuple(_column([pair[i] for pair in values]) for i in (0, 1))
        elif isinstance(values[0], Tensor):
            merged[key] = torch.stack(values).to(device)
        else:
            merged[key] = _column(values)
    return {**dict.fromkeys(PER_WEIGHT[:1], 0.0), **merged}


def map_columns(shared: Numbers, function: Callable[[Any], Any]) -> Numbers:
    """Hyper-parameters with a function applied to every column and row."""

    def apply(value: Any) -> Any:
        return function(value) if isinstance(value, Tensor | np.ndarray) else value

    return {key: tuple(map(apply, v)) if isinstance(v, tuple) else apply(v) for key, v in shared.items()}


def _column(values: Sequence[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    return np.array([float(value) for value in values])[:, None]
